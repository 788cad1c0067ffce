from collections.abc import Callable, Sequence

import pytest

from engine.errors import IntegrityError
from engine.kv_cache.manager import KVCacheManager
from engine.request import GenerationRequest, Request
from engine.sampling.params import SamplingParams


def request(request_id: str, token_ids: Sequence[int], **sampling: int) -> Request:
    return Request(GenerationRequest(request_id, tuple(token_ids), SamplingParams(max_tokens=8, **sampling)), 0.0)


def compute(kv: KVCacheManager, who: Request) -> int:
    """Runs all of a request's tokens through the cache; returns how many were found there."""
    prefix = kv.find_prefix(who)
    assert kv.allocate(who, who.num_tokens, prefix)
    who.num_computed_tokens = who.num_tokens
    kv.commit(who, who.num_computed_tokens)
    return len(prefix) * kv.block_size


def test_table_grows_block_by_block():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    a = request("a", range(8))
    assert kv.allocate(a, 4) and kv.block_table(a) == (0,)
    assert kv.allocate(a, 5) and kv.block_table(a) == (0, 1)
    assert kv.allocate(a, 8) and kv.block_table(a) == (0, 1)
    assert (kv.num_used_blocks, kv.num_available_blocks, kv.capacity_tokens) == (2, 2, 16)


def test_table_is_the_same_object_until_it_grows():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    a = request("a", range(8))
    kv.allocate(a, 3)
    table = kv.block_table(a)
    kv.allocate(a, 4)
    assert kv.block_table(a) is table


def test_allocation_that_does_not_fit_changes_nothing():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    a, b = request("a", range(8)), request("b", range(8, 16))
    kv.allocate(a, 8)
    assert not kv.allocate(b, 5)
    assert (kv.num_blocks_held(b), kv.num_available_blocks) == (0, 1)
    kv.check_integrity(live="ab")


def test_a_grown_table_is_the_known_one_as_long_as_it_covers_the_tokens():
    kv = KVCacheManager(num_blocks=2, block_size=4)
    a = request("a", range(8))
    kv.allocate(a, 3)
    table = kv.block_table(a)
    assert kv.grown_table(a, 4) is table
    assert kv.grown_table(a, 5) == (0, 1)
    assert kv.grown_table(a, 9) is None
    assert kv.block_table(a) == (0, 1)


def test_freeing_twice_frees_once():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    a = request("a", range(8))
    kv.allocate(a, 8)
    kv.free(a)
    kv.free(a)
    assert kv.num_available_blocks == 3
    kv.check_integrity(live="")


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_whole_prompt_in_the_cache_leaves_a_token_to_compute(num_tokens: int, num_cached: int):
    kv = KVCacheManager(num_blocks=16, block_size=4)
    assert compute(kv, request("a", range(num_tokens))) == 0
    assert compute(kv, request("b", range(num_tokens))) == num_cached


def test_hit_shares_the_blocks_of_a_running_request():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    a, b = request("a", range(10)), request("b", [*range(9), 99])
    compute(kv, a)
    compute(kv, b)
    assert (kv.block_table(a), kv.block_table(b)) == ((0, 1, 2), (0, 1, 3))
    assert kv.num_used_blocks == 4
    kv.check_integrity(live="ab")


def test_hit_ends_at_the_first_difference():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    compute(kv, request("a", range(16)))
    assert compute(kv, request("b", [0, 1, 2, 3, 4, 5, 6, 99, 8, 9, 10, 11, 12])) == 4


def test_partly_filled_block_is_not_shared():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    compute(kv, request("a", range(7)))
    assert compute(kv, request("b", range(9))) == 4


def test_block_filled_by_output_is_found():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    a = request("a", range(6))
    compute(kv, a)
    for token in (6, 7):
        a.token_ids.append(token)
        assert kv.allocate(a, a.num_tokens)
        a.num_computed_tokens = a.num_tokens
        kv.commit(a, a.num_computed_tokens)
    assert compute(kv, request("b", range(12))) == 8


def test_uncommitted_blocks_are_not_found():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    kv.allocate(request("a", range(8)), 8)
    assert compute(kv, request("b", range(8))) == 0


def test_requests_computed_side_by_side_keep_both_blocks_and_the_first_is_found():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    a, b = request("a", range(5)), request("b", range(5))
    for who in (a, b):
        kv.allocate(who, 5)
    for who in (b, a):
        who.num_computed_tokens = 5
        kv.commit(who, who.num_computed_tokens)
    assert (kv.block_table(a), kv.block_table(b)) == ((0, 1), (2, 3))
    c = request("c", range(5))
    compute(kv, c)
    assert kv.block_table(c)[0] == 2
    for who in (a, b, c):
        kv.free(who)
    assert (kv.num_used_blocks, kv.num_cached_blocks, kv.num_available_blocks) == (0, 1, 16)
    kv.check_integrity(live="")


def test_freed_prefix_is_evicted_from_its_tail():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    a = request("a", range(16))
    compute(kv, a)
    kv.free(a)
    assert kv.num_cached_blocks == 4
    b = request("b", range(100, 106))
    kv.allocate(b, 6)
    assert kv.block_table(b) == (3, 2)
    assert kv.find_prefix(request("c", range(16))) == [0, 1]


def test_prefix_used_lately_outlives_one_used_before():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    a, b = request("a", range(5)), request("b", range(10, 15))
    for who in (a, b):
        compute(kv, who)
    for who in (a, b):
        kv.free(who)
    again = request("a2", range(5))
    compute(kv, again)
    kv.free(again)
    kv.allocate(request("c", range(20, 32)), 12)      # two free blocks and the older of the two prefixes
    assert kv.find_prefix(request("d", range(5))) == [0]
    assert kv.find_prefix(request("e", range(10, 15))) == []


def test_allocation_never_evicts_the_prefix_it_builds_on():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    a = request("a", range(9))
    compute(kv, a)
    kv.free(a)                                        # 0 and 1 cached, 2 free
    b = request("b", range(13))
    prefix = kv.find_prefix(b)
    assert prefix == [0, 1]
    assert not kv.allocate(b, 13, prefix)             # would need 4 blocks
    assert kv.allocate(b, 12, prefix)
    assert kv.block_table(b) == (0, 1, 2)


def test_fits_counts_blocks_in_use_by_others_but_not_idle_ones_as_given():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    a = request("a", range(9))
    compute(kv, a)                                    # 3 blocks in use, 1 free
    b = request("b", range(12))
    assert kv.fits(b, 12) and not kv.fits(b, 12, leaving=1) and not kv.fits(b, 13)
    kv.free(a)
    assert kv.fits(b, 12, leaving=1) and not kv.fits(b, 12, leaving=2)


def test_salt_separates_equal_prompts():
    by_length: Callable[[GenerationRequest], str] = lambda generation: str(len(generation.prompt_token_ids))  # noqa: E731
    kv = KVCacheManager(num_blocks=16, block_size=4, salt=by_length)
    compute(kv, request("a", range(8)))
    assert compute(kv, request("b", range(9))) == 0
    assert compute(kv, request("c", range(8))) == 4


def test_prompt_logprobs_write_the_cache_but_do_not_read_it():
    kv = KVCacheManager(num_blocks=16, block_size=4)
    compute(kv, request("a", range(8)))
    assert compute(kv, request("b", range(16), prompt_logprobs=0)) == 0
    assert compute(kv, request("c", range(16))) == 12


def test_prefix_caching_off_shares_and_keeps_nothing():
    kv = KVCacheManager(num_blocks=16, block_size=4, prefix_caching=False)
    a = request("a", range(8))
    compute(kv, a)
    assert compute(kv, request("b", range(8))) == 0
    kv.free(a)
    assert kv.num_cached_blocks == 0


def test_integrity_check_sees_a_table_without_a_request():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    kv.allocate(request("a", range(8)), 8)
    with pytest.raises(IntegrityError, match=r"unknown requests: \['a'\]"):
        kv.check_integrity(live="b")


def test_integrity_check_sees_a_block_in_two_tables_that_counts_once():
    kv = KVCacheManager(num_blocks=4, block_size=4)
    for name in "ab":
        kv.allocate(request(name, range(4)), 4)
    kv._tables["b"].blocks[0] = 0
    with pytest.raises(IntegrityError, match="block 0 is in 2 tables but counts 1"):
        kv.check_integrity(live="ab")
