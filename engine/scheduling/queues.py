"""The two queues of the scheduler. In both, a lower priority number comes first, then the earlier arrival."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator

from engine.request import Request


class WaitingQueue:
    """Requests that hold no blocks: first come, first served within a priority.

    Every change takes constant time, wherever in the queue the request is, except that a new priority is sorted in
    among the other priorities.
    """

    def __init__(self) -> None:
        self._by_priority: dict[int, OrderedDict[str, Request]] = {}    # priority -> request_id -> request
        self._priorities: list[int] = []                                # those of waiting requests, ascending
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        for priority in self._priorities:
            yield from self._by_priority[priority].values()

    def append(self, request: Request) -> None:
        if request.priority not in self._by_priority:
            insort(self._priorities, request.priority)
            self._by_priority[request.priority] = OrderedDict()
        self._by_priority[request.priority][request.request_id] = request
        self._size += 1

    def push_front(self, request: Request) -> None:
        """Puts a preempted request before all others of its priority."""
        self.append(request)
        self._by_priority[request.priority].move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        same = self._by_priority[request.priority]
        del same[request.request_id]
        self._size -= 1
        if not same:
            del self._by_priority[request.priority]
            del self._priorities[bisect_left(self._priorities, request.priority)]


def _order(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival_index


class RunningQueue:
    """Requests that hold blocks, sorted, so that the last one is the newest of the lowest priority."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=_order)

    def remove(self, request: Request) -> None:
        del self._requests[bisect_left(self._requests, _order(request), key=_order)]
