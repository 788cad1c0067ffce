"""The kernels' worker threads: every item exactly once, whoever takes it, side by side, and nobody mixed up."""

import threading

import numpy as np
import pytest

from kernels.cpu.atomics import atomic_add, atomic_load
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.threads import WorkerPool

NO_TAPE = np.zeros(0, np.int64)


@kernel
def _count_items(counts, calls, value, start, stop):
    """counts[i] += value for each item; calls[0] counts the calls, calls[1 + i] is the length of the i-th."""
    call = atomic_add(calls, 0, 1)
    calls[1 + call] = stop - start
    for i in range(start, stop):
        atomic_add(counts, i, value)


@kernel
def _launch_count_items(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_count_items, arguments), num_items, num_chunks)


@kernel
def _meet(arrived, start, stop):
    """Each of two items waits for the other: one thread alone would never come to an end."""
    for _ in range(start, stop):
        atomic_add(arrived, 0, 1)
        while atomic_load(arrived, 0) < 2:
            pass


@kernel
def _launch_meet(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_meet, arguments), num_items, num_chunks)


@pytest.fixture
def pool_of():
    pools = []

    def make(num_threads):
        pools.append(WorkerPool(num_threads))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def count(pool, num_items, min_items=1, value=1):
    counts, calls = np.zeros(num_items, np.int64), np.zeros(1 + max(1, num_items), np.int64)
    pool.run(_launch_count_items, (counts, calls, value), num_items, min_items, NO_TAPE)
    return counts, calls[1 : 1 + calls[0]]


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_items", [0, 1, 2, 7, 100, 100_000])
def test_every_item_is_done_once(pool_of, num_threads, num_items):
    counts, _ = count(pool_of(num_threads), num_items)
    assert (counts == 1).all()


def test_chunks_hold_at_least_min_items(pool_of):
    _, lengths = count(pool_of(4), 100, min_items=30)
    assert len(lengths) == 3 and lengths.min() >= 30


def test_work_runs_side_by_side(pool_of):
    arrived = np.zeros(1, np.int64)
    pool_of(2).run(_launch_meet, (arrived,), 2, 1, NO_TAPE)
    assert arrived[0] == 2


def test_workers_that_have_gone_to_sleep_wake_up_again(pool_of):
    pool = pool_of(3)
    for _ in range(3):
        while not all(pool.sleeping):
            pass
        arrived = np.zeros(1, np.int64)
        pool.run(_launch_meet, (arrived,), 2, 1, NO_TAPE)
        assert arrived[0] == 2


def test_many_small_jobs_in_a_row(pool_of):
    pool, counts, calls = pool_of(4), np.zeros(8, np.int64), np.zeros(9, np.int64)
    for _ in range(20_000):
        calls[0] = 0
        pool.run(_launch_count_items, (counts, calls, 1), 8, 1, NO_TAPE)
    assert (counts == 20_000).all()


def test_callers_on_several_threads_do_not_mix(pool_of):
    pool, found = pool_of(2), {}

    def call(value):
        found[value] = [count(pool, 50, value=value)[0] for _ in range(200)]

    callers = [threading.Thread(target=call, args=(value,)) for value in range(1, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for value in range(1, 5):
        assert all((counts == value).all() for counts in found[value])


def test_a_closed_pool_leaves_no_thread(pool_of):
    before = threading.active_count()
    pool = WorkerPool(3)
    assert threading.active_count() == before + 2
    pool.close()
    assert threading.active_count() == before


@kernel
def _raise_on_three(values, start, stop):
    for i in range(start, stop):
        if i == 3:
            raise ValueError
        values[i] = 1


@kernel
def _launch_raise_on_three(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_raise_on_three, arguments), num_items, num_chunks)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_kernel_that_raises_reaches_the_caller_and_the_pool_lives_on(pool_of, num_threads):
    pool = pool_of(num_threads)
    with pytest.raises(RuntimeError, match="a CPU kernel failed"):
        pool.run(_launch_raise_on_three, (np.zeros(8, np.int64),), 8, 1, NO_TAPE)
    counts, _ = count(pool, 8)
    assert (counts == 1).all()
