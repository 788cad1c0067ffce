"""Parcel: what a replica sends an ingress at once, for all of that ingress's requests together."""

from typing import NamedTuple

from engine.api import EngineError, RequestOutput

Outputs = tuple[RequestOutput, ...]                  # of several requests, at most one of each


class Parcel(NamedTuple):
    """One item of a call, which need not be about the call's own requests.

    Parcels of one sender are put in order by their numbers: they come by several calls, which may overtake one another.
    """

    sender: str                                      # replica id
    number: int                                      # of all that it has sent to this mailbox, from 0
    outputs: Outputs
    is_last: bool = False                            # of its call, whose requests have ended with it
    error: EngineError | None = None                 # why they did, if it is no output that says so
