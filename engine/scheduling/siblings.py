"""Siblings: choices for one prompt. The first computes it; the others wait for that, and find it in the cache."""

from collections.abc import Iterator

from engine.request import Request


class Siblings:
    """Requests held back for the prompt of another: by the id of that other, in order of arrival."""

    def __init__(self) -> None:
        self._held: dict[str, list[Request]] = {}              # request_id of the first choice -> its siblings
        self._size = 0                                         # asked for with every request that comes

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        for siblings in self._held.values():
            yield from siblings

    def hold(self, request: Request, first_choice: Request) -> None:
        self._held.setdefault(first_choice.request_id, []).append(request)
        self._size += 1

    def remove(self, request: Request) -> bool:
        """Whether `request` was held back; it is not any more."""
        siblings = self._held.get(request.generation.first_choice_id or "", [])
        if request not in siblings:
            return False
        siblings.remove(request)
        self._size -= 1
        if not siblings:
            del self._held[request.generation.first_choice_id or ""]
        return True

    def release(self, first_choice: Request) -> list[Request]:
        """Those that waited for `first_choice`."""
        released = self._held.pop(first_choice.request_id, [])
        self._size -= len(released)
        return released
