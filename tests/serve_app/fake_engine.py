"""FakeEngine: scripted answers without model or threads, for an actor (Engine) or a replica (ReplicaEngine)."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from engine.api import (
    ContextTooLong,
    Continuation,
    EngineDeadError,
    EngineStats,
    FinishReason,
    GenerationRequest,
    RequestOutput,
    TokenLogprobs,
)
from serve_app.remote_engine import Receiver

MAX_MODEL_LEN = 256
EOS_TOKEN_ID = 256


@dataclass(frozen=True)
class Step:
    """A token and the text that it frees."""

    token_id: int
    text: str


def script(*pieces: str) -> tuple[Step, ...]:
    """One step per piece; a token id is the first byte of its piece."""
    return tuple(Step(piece.encode()[0] if piece else 0, piece) for piece in pieces)


class FakeEngine:
    """Answers every request with the same script, then EOS.

    `pause_s` between tokens; `hold` stops every answer before its last token until the event is set.
    """

    def __init__(
        self, steps: Sequence[Step] = script("Hel", "lo"), *, pause_s: float = 0.0, max_model_len: int = MAX_MODEL_LEN
    ) -> None:
        self.steps_of_answer = steps
        self.pause_s = pause_s
        self.max_model_len = max_model_len
        self.hold: asyncio.Event | None = None
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.death: EngineDeadError | None = None
        self.failure: str | None = None                # ends every request after its first token
        self._outbox: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None: ...

    async def begin(self, requests: tuple[GenerationRequest, ...], receiver: Receiver) -> None:
        for request in requests:
            self._accept(request)
        for request in requests:
            self._running[request.request_id] = asyncio.create_task(self._tell(request, receiver))

    def abandon(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.aborted.append(request_id)
            if task := self._running.pop(request_id, None):
                task.cancel()

    async def submit(self, request: GenerationRequest) -> None:
        self._accept(request)
        self._running[request.request_id] = asyncio.create_task(self._run(request))

    async def steps(self, pause_for: object = None) -> AsyncIterator[tuple[RequestOutput, ...]]:
        while self.death is None:
            try:
                yield (await asyncio.wait_for(self._outbox.get(), 0.5),)
            except TimeoutError:
                yield ()
        raise self.death

    async def abort(self, request_id: str) -> None:
        task = self._running.pop(request_id, None)
        if task is not None:
            task.cancel()
            self.aborted.append(request_id)

    async def was_aborted(self, count: int) -> None:
        """Return when so many requests have been aborted, and no more."""
        async with asyncio.timeout(10):
            while len(self.aborted) < count:
                await asyncio.sleep(0)
        assert len(self.aborted) == count

    def stats(self) -> EngineStats:
        return EngineStats(
            model="fake",
            max_model_len=self.max_model_len,
            num_requests_running=len(self._running),
            num_finished={"abort": len(self.aborted)},
        )

    async def check_health(self) -> None:
        if self.death is not None:
            raise self.death

    async def drain(self) -> list[Continuation]:
        return []

    async def shutdown(self) -> None: ...

    def _accept(self, request: GenerationRequest) -> None:
        num_tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        if num_tokens > self.max_model_len:
            raise ContextTooLong(
                f"{num_tokens} tokens; the model's context is {self.max_model_len}", param="max_tokens"
            )
        self.requests.append(request)

    async def _run(self, request: GenerationRequest) -> None:
        async for output in self._answer(request):
            self._outbox.put_nowait(output)
        self._running.pop(request.request_id, None)

    async def _tell(self, request: GenerationRequest, receiver: Receiver) -> None:
        try:
            async for output in self._answer(request):
                receiver.put(output)
        except EngineDeadError as error:
            receiver.fail(error)
        self._running.pop(request.request_id, None)

    async def _answer(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        sampling = request.sampling
        template = RequestOutput(
            request.request_id,
            num_prompt_tokens=len(request.prompt_token_ids),
            prompt_logprobs=_prompt_logprobs(request),
        )
        if sampling.max_tokens == 0:
            yield template._replace(finish_reason=FinishReason.LENGTH)
            return
        for count, step in enumerate(self.steps_of_answer, 1):
            await asyncio.sleep(self.pause_s)
            if self.death is not None:
                raise self.death
            if self.failure is not None and count == 2:
                yield template._replace(finish_reason=FinishReason.ERROR, error=self.failure)
                return
            if self.hold is not None and count == len(self.steps_of_answer):
                await self.hold.wait()
            is_last = count == sampling.max_tokens
            yield template._replace(
                token_ids=(step.token_id,),
                text=step.text,
                logprobs=_logprobs(request, step.token_id),
                num_output_tokens=count,
                finish_reason=FinishReason.LENGTH if is_last else None,
            )
            if is_last:
                return
            template = template._replace(prompt_logprobs=None)
        yield template._replace(
            token_ids=(EOS_TOKEN_ID,),
            logprobs=_logprobs(request, EOS_TOKEN_ID),
            num_output_tokens=len(self.steps_of_answer) + 1,
            finish_reason=FinishReason.STOP,
        )


def _logprobs(request: GenerationRequest, token_id: int) -> tuple[TokenLogprobs, ...]:
    if request.sampling.logprobs is None:
        return ()
    top = tuple((token, -1.0 - rank) for rank, token in enumerate(range(65, 65 + request.sampling.logprobs)))
    return (TokenLogprobs(token_id, -0.5, 1, top),)


def _prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprobs, ...] | None:
    if request.sampling.prompt_logprobs is None:
        return None
    first, *rest = request.prompt_token_ids
    return (TokenLogprobs(first, None, None), *(TokenLogprobs(token, -0.25, 1) for token in rest))
