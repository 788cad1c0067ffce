"""AsyncEngine: a core on a thread of its own, with asyncio on this side and plain method calls on that side."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from engine.config import EngineConfig
from engine.continuation import Continuation
from engine.embedding import EmbeddingRequest, EngineRequest
from engine.errors import EngineDeadError, EngineError
from engine.heap import give_back_freed_memory
from engine.outbox import Outbox, PauseFor
from engine.outputs import EngineStats, RequestOutput
from engine.request import GenerationRequest
from engine.sampling.grammar.checks import GrammarError
from engine.sampling.grammar.compiler import Grammar
from engine.stepping import Core
from engine.streams import RequestStreams

IDLE_WAIT_S = 0.25            # an idle loop comes round this often, so that its heartbeat stays fresh
HEARTBEAT_S = 0.5             # `steps` yields an empty item at least this often
JOIN_TIMEOUT_S = 30.0


class AsyncEngine:
    """The Engine of `engine.api`.

    Commands travel to the step thread in a deque and are carried out between two steps; outputs travel back by
    `call_soon_threadsafe`. The thread alone touches the core, so the core needs no locks.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        build: Callable[[EngineConfig], Core] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._build = build or _build_core
        self._clock = clock
        self._core: Core | None = None
        self._thread: threading.Thread | None = None
        self._commands: deque[tuple[Callable[[Core], Any], asyncio.Future[Any]]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._draining = False
        self._ended = False                            # the step thread has said its last word
        self._dead: EngineDeadError | None = None
        self._heartbeat_s = clock()
        self._is_stepping = False
        self._streams = RequestStreams()
        self._submitted: set[str] = set()              # live requests whose outputs go through `steps`
        self._outbox = Outbox()                        # outputs `steps` has not yielded yet

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        built: asyncio.Future[Core] = self._loop.create_future()
        self._thread = threading.Thread(target=self._build_and_run, args=(built,), name="engine-step", daemon=True)
        self._thread.start()
        self._core = await built

    async def submit(self, request: EngineRequest) -> None:
        self._submitted.add(request.request_id)
        try:
            await self._accept(request)
        except BaseException:
            self._submitted.discard(request.request_id)
            raise

    async def steps(self, pause_for: PauseFor | None = None) -> AsyncIterator[tuple[RequestOutput, ...]]:
        while True:
            outputs = await self._outbox.take(HEARTBEAT_S)
            yield outputs
            rest_until_s = self._loop.time() + (pause_for(len(outputs)) if pause_for and outputs else 0.0)
            while not self._over and (rest_s := rest_until_s - self._loop.time()) > 0:
                if urgent := await self._outbox.take_urgent(rest_s):
                    yield urgent
            if self._over and self._outbox:
                continue                               # last words
            if self._dead:
                raise self._dead
            if self._ended:
                return

    @property
    def _over(self) -> bool:
        return self._ended or self._dead is not None

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        outputs = self._streams.open(request.request_id)
        finished = False
        try:
            await self._accept(request)
            async for output in outputs:
                finished = output.is_finished
                yield output
        finally:
            self._streams.close(request.request_id)
            if not finished:
                self._post_abort(request.request_id)

    async def embed(self, request: EmbeddingRequest) -> RequestOutput:
        (output,) = [output async for output in self.generate(request)]
        return output

    async def abort(self, request_id: str) -> None:
        self._post_abort(request_id)

    def stats(self) -> EngineStats:
        if self._core is None:
            return EngineStats()
        age_s = self._clock() - self._heartbeat_s
        return replace(self._core.stats(), heartbeat_age_s=age_s, is_stepping=self._is_stepping)

    async def check_health(self) -> None:
        if self._dead:
            raise self._dead
        if self._thread is None or not self._thread.is_alive():
            raise EngineDeadError("the step thread is not running")
        age_s = self._clock() - self._heartbeat_s
        if age_s > self._config.step_timeout_s:
            doing = "one step has run" if self._is_stepping else "the step loop has been silent"
            raise EngineDeadError(f"{doing} for {age_s:.0f} s; step_timeout_s is {self._config.step_timeout_s:g}")

    async def drain(self) -> list[Continuation]:
        self._draining = True
        continuations: list[Continuation] = await self._call(lambda core: core.drain())
        return continuations

    async def shutdown(self) -> None:
        if self._thread is None or self._stopping:
            return
        self._draining = self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, JOIN_TIMEOUT_S)

    # ------------------------------------------------------------------ between the event loop and the step thread

    async def _accept(self, request: EngineRequest) -> None:
        if self._draining:
            raise EngineDeadError("the engine is shutting down")
        grammar = await self._compiled_grammar(request)
        await self._call(lambda core: core.add_request(request))
        del grammar                                    # the core holds it from here on

    async def _compiled_grammar(self, request: EngineRequest) -> Grammar | None:
        """Compiled by threads of its own: the step loop never waits for a grammar."""
        grammars = None if self._core is None else self._core.grammars
        spec = request.sampling.grammar if isinstance(request, GenerationRequest) else None
        if spec is None or grammars is None:
            return None
        if not grammars.is_prepared:
            await asyncio.to_thread(grammars.prepare)  # its time is no grammar's
        future = grammars.compiled(spec)
        compiled = asyncio.wrap_future(future)
        compiled.add_done_callback(_read)
        try:
            async with asyncio.timeout(grammars.compile_timeout_s):
                return await asyncio.shield(compiled)
        except (GrammarError, TimeoutError) as error:
            raise grammars.refusal(spec, future, error) from None
        except asyncio.CancelledError:
            if not future.cancelled():
                raise                                  # it is the caller who is cancelled
            raise grammars.refusal(spec, future, TimeoutError()) from None

    def _post_abort(self, request_id: str) -> None:
        if self._dead is None and self._thread is not None:
            self._post(lambda core: core.abort(request_id), self._loop.create_future())

    async def _call(self, command: Callable[[Core], Any]) -> Any:
        if self._dead:
            raise self._dead
        if self._thread is None or self._stopping:
            raise EngineDeadError("the engine is not running")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._post(command, future)
        return await future

    def _post(self, command: Callable[[Core], Any], future: "asyncio.Future[Any]") -> None:
        self._commands.append((command, future))
        self._wake.set()

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            request_id = output.request_id
            if request_id not in self._submitted:
                self._streams.deliver((output,))
                continue
            self._outbox.put(output)
            if output.is_finished:
                self._submitted.discard(request_id)

    def _fail(self, error: EngineDeadError) -> None:
        self._dead = error
        self._streams.fail(error)
        self._settle_commands(error)
        self._outbox.wake()

    def _end(self) -> None:
        self._ended = True
        self._settle_commands(EngineDeadError("the engine is shutting down"))
        self._outbox.wake()

    def _settle_commands(self, error: EngineError) -> None:
        while self._commands:
            _, future = self._commands.popleft()
            _settle(future, None, error)

    # ------------------------------------------------------------------------------------------- on the step thread

    def _build_and_run(self, built: "asyncio.Future[Core]") -> None:
        """The whole life of the engine on one thread.

        The model is built here too: OpenMP keeps a team of workers for every thread that has computed, and once there
        are more of them than cores it lets them sleep between products, which costs a third of a decode step.
        """
        try:
            core = self._build(self._config)
        except BaseException as error:
            self._to_loop(_settle, built, None, error)
            return
        self._heartbeat_s = self._clock()
        self._to_loop(_settle, built, core, None)
        self._run(core)
        core.close()

    def _run(self, core: Core) -> None:
        try:
            is_checked = is_trimmed = False
            while not self._stopping:
                self._heartbeat_s = self._clock()
                self._wake.clear()
                self._carry_out_commands(core)
                if core.has_work:
                    is_checked = is_trimmed = False
                    self._is_stepping = True
                    outputs = core.step()
                    self._is_stepping = False
                    if outputs:
                        self._to_loop(self._deliver, outputs)
                    elif core.wait_until_s is not None and not self._commands:
                        self._wake.wait(min(IDLE_WAIT_S, max(0.0, core.wait_until_s - self._clock())))
                elif not self._commands:
                    if not is_checked:
                        core.check_integrity()
                        is_checked = True
                    if not core.prepare() and not self._wake.wait(IDLE_WAIT_S) and not is_trimmed:
                        give_back_freed_memory()       # long prompts leave tens of MB behind
                        is_trimmed = True
            self._to_loop(self._deliver, core.abort_all())
            self._to_loop(self._end)
        except BaseException as error:
            # Whatever broke the loop broke every request in it: the engine dies as a whole, never by halves.
            core.report_death(error)
            cause = f"the engine's step loop failed: {type(error).__name__}: {error}"
            self._to_loop(self._fail, EngineDeadError(cause))

    def _carry_out_commands(self, core: Core) -> None:
        while self._commands:
            command, future = self._commands.popleft()
            result, refusal = None, None
            try:
                result = command(core)
            except EngineError as error:
                refusal = error
            outputs = core.take_outputs()
            if outputs:
                self._to_loop(self._deliver, outputs)
            self._to_loop(_settle, future, result, refusal)

    def _to_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stopping = True                      # the loop is closed: nobody is left to serve


def _read(future: "asyncio.Future[Any]") -> None:
    """So that asyncio does not complain of an error that came after whoever waited had gone."""
    if not future.cancelled():
        future.exception()


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        future.exception()                             # an abort's future has no reader; that is not a fault
    else:
        future.set_result(result)


def _build_core(config: EngineConfig) -> Core:
    from engine.build import build_any_core

    return build_any_core(config)
