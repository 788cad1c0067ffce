"""Which waiting texts one step of an encoder takes: whole ones, packed up to a budget of tokens."""

from collections.abc import Iterable


def pack(lengths: Iterable[tuple[str, int]], *, max_num_tokens: int, max_num_texts: int) -> list[str]:
    """Ids of the texts to compute next, of `lengths`: (id, tokens) of those that wait, the oldest first.

    A text sees itself as a whole, so it is never cut. The oldest one goes first, however long; behind it goes, in
    order of age, whatever still fits. A shorter text may so pass a longer one, but nothing passes the oldest: no text
    waits for more steps than there were texts before it.
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
