"""Continuation: what a drain leaves of a request."""

from dataclasses import dataclass

from engine.embedding import EngineRequest


@dataclass(frozen=True, slots=True)
class Continuation:
    """Unfinished work as a value: the request, resumable anywhere by an ordinary `generate`."""

    request: EngineRequest                         # resume_token_ids hold all output so far
