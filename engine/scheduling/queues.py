"""The two queues of the scheduler. In both, a lower priority number comes first, then the earlier arrival."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from engine.request import Request


class _Line:
    """First come, first served within a priority.

    Every change takes constant time, wherever in the line the request is, except that a new priority is sorted in
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
        self.append(request)
        self._by_priority[request.priority].move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        same = self._by_priority[request.priority]
        del same[request.request_id]
        self._size -= 1
        if not same:
            del self._by_priority[request.priority]
            del self._priorities[bisect_left(self._priorities, request.priority)]


class WaitingQueue:
    """Requests that hold no blocks, in one line; and each tenant's line apart, from the first time it is asked for."""

    def __init__(self) -> None:
        self._all = _Line()
        self._by_tenant: dict[str | None, _Line] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._all)

    @property
    def by_tenant(self) -> Mapping[str | None, Iterable[Request]]:
        """The requests of every tenant that has some here."""
        if self._by_tenant is None:
            self._by_tenant = {}
            for request in self._all:
                self._line_of(self._by_tenant, request).append(request)
        return self._by_tenant

    def append(self, request: Request) -> None:
        self._all.append(request)
        if self._by_tenant is not None:
            self._line_of(self._by_tenant, request).append(request)

    def push_front(self, request: Request) -> None:
        """Puts a preempted request before all others of its priority."""
        self._all.push_front(request)
        if self._by_tenant is not None:
            self._line_of(self._by_tenant, request).push_front(request)

    def remove(self, request: Request) -> None:
        self._all.remove(request)
        if self._by_tenant is not None:
            line = self._by_tenant[request.generation.tenant]
            line.remove(request)
            if not line:
                del self._by_tenant[request.generation.tenant]

    @staticmethod
    def _line_of(lines: dict[str | None, _Line], request: Request) -> _Line:
        return lines.setdefault(request.generation.tenant, _Line())


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
