import pytest

from engine.errors import IntegrityError
from engine.kv_cache.block_pool import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    """(free, cached idle, in use)"""
    pool.check_integrity()
    return pool.num_available - pool.num_cached_idle, pool.num_cached_idle, pool.num_in_use


def test_blocks_start_at_zero_and_all_are_usable():
    pool = BlockPool(3)
    assert pool.allocate(3) == [0, 1, 2]
    assert counts(pool) == (0, 0, 3)


def test_free_blocks_come_back_least_recently_used_first():
    pool = BlockPool(3)
    pool.allocate(3)
    pool.release([1, 0])
    pool.release([2])
    assert pool.allocate(3) == [1, 0, 2]


def test_released_block_with_a_hash_stays_findable():
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.register(block, b"x")
    pool.release([block])
    assert pool.find(b"x") == block
    assert counts(pool) == (1, 1, 0)


def test_free_blocks_are_taken_before_cached_ones_are_evicted():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.register(blocks[0], b"x")
    pool.release(blocks)
    assert pool.allocate(2) == [2, 1]
    assert pool.find(b"x") == 0
    assert pool.allocate(1) == [0]
    assert pool.find(b"x") is None


def test_eviction_takes_the_least_recently_used():
    pool = BlockPool(3)
    for block, name in zip(pool.allocate(3), (b"x", b"y", b"z"), strict=True):
        pool.register(block, name)
    pool.release([0, 1, 2])
    pool.share(0)                                     # x is used once more …
    pool.release([0])                                 # … and so becomes the most recent
    assert pool.allocate(3) == [1, 2, 0]
    assert counts(pool) == (0, 0, 3)


def test_shared_block_is_idle_only_after_its_last_user():
    pool = BlockPool(1)
    pool.allocate(1)
    pool.register(0, b"x")
    pool.share(0)
    pool.release([0])
    assert (pool.ref_count(0), pool.num_available) == (1, 0)
    pool.release([0])
    assert counts(pool) == (0, 1, 0)


def test_first_of_equal_blocks_keeps_the_name_and_the_other_becomes_free():
    pool = BlockPool(2)
    pool.allocate(2)
    pool.register(1, b"x")
    pool.register(0, b"x")
    pool.release([0, 1])
    assert pool.find(b"x") == 1
    assert counts(pool) == (1, 1, 0)


def test_integrity_check_sees_a_block_released_twice():
    pool = BlockPool(2)
    pool.allocate(2)
    pool.release([0])
    pool.release([1])
    pool._free.append(0)
    with pytest.raises(IntegrityError, match="3 free, 0 cached idle and 0 used blocks are not 2"):
        pool.check_integrity()


def test_integrity_check_sees_a_free_block_in_use():
    pool = BlockPool(2)
    pool.allocate(1)
    pool._free.append(0)
    pool._free.popleft()
    with pytest.raises(IntegrityError, match="in use"):
        pool.check_integrity()


def test_integrity_check_sees_a_stale_name():
    pool = BlockPool(1)
    pool.allocate(1)
    pool.register(0, b"x")
    pool._by_hash[b"y"] = 0
    with pytest.raises(IntegrityError, match="disagree"):
        pool.check_integrity()
