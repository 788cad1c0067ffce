"""The pool of KV blocks: who is free, who holds a reusable prefix, how many requests use each block."""

from collections import OrderedDict, deque
from collections.abc import Iterable

from engine.errors import IntegrityError


class BlockPool:
    """Blocks 0 to num_blocks - 1, each in one of three states.

    free         nobody uses it and it holds nothing worth keeping
    cached idle  nobody uses it, but its contents can be found by hash until it is evicted, least recently used first
    in use       its reference count is the number of requests whose tables hold it
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._free = deque(range(num_blocks))
        self._cached_idle: OrderedDict[int, None] = OrderedDict()    # least recently used first

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free ones and, by eviction, cached idle ones."""
        return len(self._free) + len(self._cached_idle)

    @property
    def num_cached_idle(self) -> int:
        return len(self._cached_idle)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - self.num_available

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for one new user, at most `num_available`; free ones before cached idle ones."""
        return [self._allocate_one() for _ in range(count)]

    def _allocate_one(self) -> int:
        if self._free:
            block_id = self._free.popleft()
        else:
            block_id, _ = self._cached_idle.popitem(last=False)
            del self._by_hash[self._hashes[block_id]]    # type: ignore[arg-type]  # idle blocks have a hash
            self._hashes[block_id] = None
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Adds a user to a block found by `find`."""
        if self._ref_counts[block_id] == 0:
            del self._cached_idle[block_id]
        self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Takes one user from each block; of those that fall idle, the first is the first to be evicted."""
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                if self._hashes[block_id] is None:
                    self._free.append(block_id)
                else:
                    self._cached_idle[block_id] = None

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Lets later requests find a block in use. Of several blocks with equal contents the first keeps the name."""
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def find(self, block_hash: bytes) -> int | None:
        return self._by_hash.get(block_hash)

    def check_integrity(self) -> None:
        num_used = sum(count > 0 for count in self._ref_counts)
        if len(self._free) + len(self._cached_idle) + num_used != self.num_blocks:
            raise IntegrityError(
                f"{len(self._free)} free, {len(self._cached_idle)} cached idle and {num_used} used blocks"
                f" are not {self.num_blocks}"
            )
        if any(self._ref_counts[block_id] for block_id in (*self._free, *self._cached_idle)):
            raise IntegrityError("a free or idle block is in use")
        if any(self._hashes[block_id] is not None for block_id in self._free):
            raise IntegrityError("a free block has a hash")
        named = {block_hash: block_id for block_id, block_hash in enumerate(self._hashes) if block_hash is not None}
        if named != self._by_hash or not all(self._hashes[block_id] for block_id in self._cached_idle):
            raise IntegrityError("block hashes and the index over them disagree")
