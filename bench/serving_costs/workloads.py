"""What the server is given: streams of equal length all at once, and prompts of which every other one was seen."""

from dataclasses import dataclass
from typing import ClassVar

from bench.workloads import Draw, WorkloadRequest, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Streams(WorkloadSpec):
    """So many streams from beginning to end: none ends before the others."""

    name: ClassVar[str] = "streams"
    num_streams: int
    prompt_len: int
    output_len: int

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        return [WorkloadRequest(i, draw.prompt(self.prompt_len), self.output_len) for i in range(self.num_streams)]


@dataclass(frozen=True, slots=True)
class SharedPrefix(WorkloadSpec):
    """One request at a time, in pairs: a prefix that nobody had before, then the same prefix before another end."""

    name: ClassVar[str] = "shared_prefix"
    num_pairs: int
    prefix_len: int
    rest_len: int                                  # tokens behind the prefix, each request's own
    output_len: int = 2

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        found: list[WorkloadRequest] = []
        for _ in range(self.num_pairs):
            prefix = draw.prompt(self.prefix_len)
            for _ in range(2):
                prompt = prefix + draw.prompt(self.rest_len)
                found.append(WorkloadRequest(len(found), prompt, self.output_len, user=0))
        return found
