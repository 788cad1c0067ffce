"""Which waiting texts one step of an encoder takes: whole ones, packed up to a budget of tokens."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping


def pack(lengths: Iterable[tuple[str, int]], *, max_num_tokens: int, max_num_texts: int) -> list[str]:
    """Ids of the texts to compute next, of `lengths`: (id, tokens) of those that wait, the oldest of all first.

    A text sees itself as a whole, so it is never cut. The first one goes, however long; behind it goes, in the order
    given, whatever still fits. A shorter text may so pass a longer one, but nothing passes the oldest: no text waits
    for more steps than there were older ones.
    """
    taken: list[str] = []
    num_free = max_num_tokens
    for text, length in lengths:
        if taken and length > num_free:
            continue
        taken.append(text)
        num_free -= length
        if len(taken) == max_num_texts or num_free <= 0:
            break
    return taken


def in_turns(tenants: Mapping[str, str | None]) -> Iterator[str]:
    """Ids of `tenants`, id -> tenant with the oldest first, in the order in which tenants take turns.

    So one client's thousands of texts do not keep another's single one waiting. The oldest of all comes first.
    """
    queues: dict[str | None, deque[str]] = {}
    for text, tenant in tenants.items():
        queues.setdefault(tenant, deque()).append(text)
    while queues:
        for tenant in tuple(queues):
            yield queues[tenant].popleft()
            if not queues[tenant]:
                del queues[tenant]
