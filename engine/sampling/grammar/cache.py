"""Grammars: compiles grammars beside the step loop, and keeps them for whoever asks next."""

import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from weakref import WeakValueDictionary

from engine.errors import InvalidRequest, QueueFull, RequestError
from engine.sampling.grammar.checks import GrammarError, check
from engine.sampling.grammar.compiler import Grammar, compile_grammar
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.grammar.vocabulary import Vocabulary
from engine.text.tokenizer import Tokenizer

_NUM_THREADS = 2
_STACK_BYTES_PER_BYTE = 4096


class Grammars:
    """One model's grammars. Safe to use from several threads.

    A grammar that a request holds is never compiled again; idle ones are kept, the latest used first, up to
    `cache_bytes`.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_bytes: int, max_depth: int, compile_timeout_s: float, cache_bytes: int
    ) -> None:
        self.compile_timeout_s = compile_timeout_s
        self._max_bytes, self._max_depth, self._cache_bytes = max_bytes, max_depth, cache_bytes
        self._lock = threading.Lock()
        self._under_way: dict[GrammarSpec, Future[Grammar]] = {}
        self._kept: OrderedDict[GrammarSpec, Grammar] = OrderedDict()     # least recently used first
        self._live: WeakValueDictionary[GrammarSpec, Grammar] = WeakValueDictionary()
        self._num_kept_bytes = 0
        # llguidance recurses once for every grammar rule or schema that a chain of references runs through, and takes
        # some 15 kB of stack each time; where the stack ends, so does the process.
        self._pool = _pool(_NUM_THREADS, _STACK_BYTES_PER_BYTE * max_bytes)
        self._tokenizer = tokenizer
        self._vocabulary: Vocabulary | None = None
        self._building = threading.Lock()

    def compiled(self, spec: GrammarSpec) -> "Future[Grammar]":
        """The grammar, at once or soon. It fails with GrammarError."""
        with self._lock:
            known = self._live.get(spec)
            if known is not None and not known.is_spent:
                self._keep(spec, known)
                done: Future[Grammar] = Future()
                done.set_result(known)
                return done
            future = self._under_way.get(spec)
            if future is None:
                future = self._under_way[spec] = self._pool.submit(self._compile, spec)
                future.add_done_callback(lambda _: self._under_way.pop(spec, None))
            return future

    def get(self, spec: GrammarSpec) -> Grammar:
        """The grammar; waits for it. Raises RequestError."""
        self.prepare()                             # its time is no grammar's
        future = self.compiled(spec)
        try:
            return future.result(self.compile_timeout_s)
        except (GrammarError, TimeoutError, CancelledError) as error:
            raise self.refusal(spec, future, error) from None

    def refusal(self, spec: GrammarSpec, future: "Future[Grammar]", error: BaseException) -> RequestError:
        """Why there is no grammar: `error` is what `future` raised, or TimeoutError after `compile_timeout_s`."""
        param = spec.param
        if isinstance(error, GrammarError):
            return InvalidRequest(f"{param or 'grammar'}: {error}", param=param)
        if future.cancelled() or future.cancel():
            return QueueFull("too many grammars are being compiled; try again later")
        return InvalidRequest(f"{param or 'grammar'}: not compiled within {self.compile_timeout_s:g} s", param=param)

    @property
    def is_prepared(self) -> bool:
        """Whether a grammar waits for nothing but its own compilation."""
        return self._vocabulary is not None or self._tokenizer.byte_rule is None

    def prepare(self) -> bool:
        """Build what all grammars share; False: it is there. Steps stand still meanwhile: for when there is no work."""
        if self.is_prepared:
            return False
        self._built()
        return True

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: GrammarSpec) -> Grammar:
        check(spec, max_bytes=self._max_bytes, max_depth=self._max_depth)
        if self._tokenizer.byte_rule is None:
            raise GrammarError("the model's tokenizer does not tell the exact bytes of a token, which grammars need")
        grammar = compile_grammar(self._built(), spec)
        with self._lock:
            self._live[spec] = grammar
            self._keep(spec, grammar)
        return grammar

    def _built(self) -> Vocabulary:
        with self._building:
            self._vocabulary = self._vocabulary or Vocabulary(self._tokenizer)
            return self._vocabulary

    def _keep(self, spec: GrammarSpec, grammar: Grammar) -> None:
        earlier = self._kept.pop(spec, None)
        self._num_kept_bytes += grammar.nbytes - (0 if earlier is None else earlier.nbytes)
        self._kept[spec] = grammar
        while self._num_kept_bytes > self._cache_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._num_kept_bytes -= oldest.nbytes


def _pool(num_threads: int, stack_bytes: int) -> ThreadPoolExecutor:
    """Threads that are all there already, with stacks of that size: only memory that is touched is taken."""
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
    before = threading.stack_size(max(stack_bytes, 8 * 2**20))
    try:
        all_there = threading.Barrier(num_threads + 1)
        for _ in range(num_threads):
            pool.submit(all_there.wait)
        all_there.wait()
    finally:
        threading.stack_size(before)
    return pool
