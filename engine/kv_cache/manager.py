"""KVCacheManager: the only owner of block tables, reference counts and free counts."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.errors import IntegrityError
from engine.kv_cache.block_hash import block_hash, root_hash
from engine.kv_cache.block_pool import BlockPool
from engine.request import GenerationRequest, Request


@dataclass(slots=True)
class _Table:
    """The blocks of one request, in the order of their tokens."""

    root: bytes
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)      # of the request's first full blocks, as far as needed yet
    num_committed: int = 0                                 # first blocks offered to the prefix cache
    snapshot: tuple[int, ...] | None = None                # `blocks` as it goes into plans; None after a change


class KVCacheManager:
    """KV blocks of all requests: allocated by the token, freed together, found again by content.

    A table is born with the blocks that already hold the request's first tokens (`find_prefix`) and grows at the
    end. Blocks are shared only while full, so nobody ever writes to a shared block. Where the prefix cache is on,
    the tables of waiting requests exist too, without blocks, to keep hashes.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        salt: Callable[[GenerationRequest], str] = lambda request: "",
    ) -> None:
        """`salt` names the requests that may share blocks: those with equal results, for equal tokens."""
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self.prefix_caching = prefix_caching
        self._salt = salt
        self._tables: dict[str, _Table] = {}               # request_id -> its blocks

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def capacity_tokens(self) -> int:
        return self._pool.num_blocks * self.block_size

    @property
    def num_used_blocks(self) -> int:
        return self._pool.num_in_use

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that no request uses but that still hold a reusable prefix."""
        return self._pool.num_cached_idle

    @property
    def num_available_blocks(self) -> int:
        """Blocks that an allocation may have: all that no request uses."""
        return self._pool.num_available

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_blocks_held(self, request: Request) -> int:
        table = self._tables.get(request.request_id)
        return len(table.blocks) if table else 0

    def block_table(self, request: Request) -> tuple[int, ...]:
        table = self._tables[request.request_id]
        if table.snapshot is None:
            table.snapshot = tuple(table.blocks)
        return table.snapshot

    def grown_table(self, request: Request, num_tokens: int) -> tuple[int, ...] | None:
        """The table of a request that has one, grown to cover `num_tokens` in all.

        None, and nothing has changed, when too few blocks are available.
        """
        known = self._tables[request.request_id].snapshot
        if known is not None and num_tokens <= len(known) * self.block_size:   # nearly every decode ends here
            return known
        return self.block_table(request) if self.allocate(request, num_tokens) else None

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks holding the first tokens of a request that has none; at least one token is left to compute.

        A request for prompt logprobs needs the logits of every prompt position, so it finds nothing.
        """
        if not self.prefix_caching or request.sampling.prompt_logprobs is not None:
            return []
        table = self._table(request)
        found: list[int] = []
        for index in range((request.num_tokens - 1) // self.block_size):
            block_id = self._pool.find(self._hash(table, request, index))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def fits(self, request: Request, num_tokens: int, *, leaving: int = 0) -> bool:
        """Whether `request` can have blocks for `num_tokens` in all, with `leaving` blocks still available then."""
        num_ready = self.num_blocks_held(request)
        if num_ready == 0:
            num_ready = sum(self._pool.ref_count(block_id) > 0 for block_id in self.find_prefix(request))
        return self.num_blocks_for(num_tokens) - num_ready <= self._pool.num_available - leaving

    def allocate(self, request: Request, num_tokens: int, prefix: Sequence[int] = ()) -> bool:
        """Grows the table to cover `num_tokens` in all; `prefix`, from `find_prefix`, begins a new one.

        False, and nothing has changed, when too few blocks are available.
        """
        table = self._tables.get(request.request_id) or self._table(request)
        num_new = self.num_blocks_for(num_tokens) - len(table.blocks) - len(prefix)
        if num_new <= 0 and not prefix:
            return True
        num_idle = sum(self._pool.ref_count(block_id) == 0 for block_id in prefix)
        if max(num_new, 0) + num_idle > self._pool.num_available:
            return False
        for block_id in prefix:                            # before allocating, which may evict idle blocks
            self._pool.share(block_id)
        table.blocks += [*prefix, *self._pool.allocate(num_new)]
        table.num_committed += len(prefix)
        table.snapshot = None
        return True

    def commit(self, request: Request, num_tokens: int) -> None:
        """Lets later requests find the full blocks among the first `num_tokens`, which are known and computed."""
        table = self._tables[request.request_id]
        num_full = num_tokens // self.block_size
        if num_full > table.num_committed and self.prefix_caching:
            for index in range(table.num_committed, num_full):
                self._pool.register(table.blocks[index], self._hash(table, request, index))
            table.num_committed = num_full

    def free(self, request: Request) -> None:
        """Gives up the request's blocks, if any, tail first: the heads of prefixes are evicted last."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            self._pool.release(reversed(table.blocks))

    def _table(self, request: Request) -> _Table:
        table = self._tables.get(request.request_id)
        if table is None:
            table = self._tables[request.request_id] = _Table(root_hash(self._salt(request.generation)))
        return table

    def _hash(self, table: _Table, request: Request, index: int) -> bytes:
        """The hash of the request's block `index`; those before it must have been asked for."""
        if index == len(table.hashes):
            parent = table.hashes[-1] if table.hashes else table.root
            start = index * self.block_size
            table.hashes.append(block_hash(parent, request.token_ids[start : start + self.block_size]))
        return table.hashes[index]

    def check_integrity(self, live: Iterable[str]) -> None:
        """Raises IntegrityError unless the books add up and every table belongs to a request of `live`."""
        self._pool.check_integrity()
        if orphans := self._tables.keys() - set(live):
            raise IntegrityError(f"block tables of unknown requests: {sorted(orphans)}")
        for request_id, table in self._tables.items():
            if len(set(table.blocks)) != len(table.blocks):
                raise IntegrityError(f"the table of '{request_id}' holds a block twice: {table.blocks}")
        users = Counter(block_id for table in self._tables.values() for block_id in table.blocks)
        for block_id in range(self._pool.num_blocks):
            if users[block_id] != self._pool.ref_count(block_id):
                raise IntegrityError(
                    f"block {block_id} is in {users[block_id]} tables but counts {self._pool.ref_count(block_id)}"
                )
