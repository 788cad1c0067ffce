"""Core: what AsyncEngine's thread drives, whatever kind of model it serves."""

from typing import Protocol

from engine.continuation import Continuation
from engine.embedding import EngineRequest
from engine.outputs import EngineStats, RequestOutput
from engine.sampling.grammar.cache import Grammars


class Core(Protocol):
    """One engine without threads: call `step` while `has_work`. Single-threaded by contract, but for `stats`."""

    @property
    def has_work(self) -> bool: ...

    @property
    def grammars(self) -> Grammars | None:
        """What compiles the grammars of requests, before they are added; None: requests have none here."""

    @property
    def wait_until_s(self) -> float | None:
        """Set after a step that had nothing to compute: when the next may have; None: call `step` again at once."""

    def add_request(self, request: EngineRequest, /) -> None:
        """Accept the request. Raises RequestError if it can never be served, or not now."""

    def abort(self, request_id: str) -> None:
        """End the request, at whatever stage it is. Unknown and finished ids are ignored."""

    def abort_all(self) -> list[RequestOutput]: ...

    def drain(self) -> list[Continuation]:
        """End all unfinished requests and return them as values that any engine can resume."""

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs not returned by a step: last words of requests aborted between steps."""

    def step(self) -> list[RequestOutput]:
        """Compute one step, and return what the requests gained."""

    def prepare(self) -> bool:
        """For when there is no work: a little of what steps would do at their first time; False: nothing is left."""

    def check_integrity(self) -> None: ...

    def stats(self) -> EngineStats:
        """A snapshot; safe to call from another thread."""

    def report_death(self, error: BaseException) -> None: ...

    def close(self) -> None:
        """The last call."""
