"""The kernels' worker threads: every item exactly once, whoever takes it, and errors reach the caller."""

import threading

import pytest

from kernels.cpu.threads import WorkerPool


class Ranges:
    """A kernel that notes the ranges it was called for."""

    def __init__(self):
        self.calls = []

    def __call__(self, start, stop):
        self.calls.append((start, stop))


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_items", [0, 1, 2, 7, 100])
def test_the_ranges_cover_every_item_once(num_threads, num_items):
    kernel = Ranges()
    WorkerPool(num_threads).run(kernel, (), num_items, 1)
    assert [i for start, stop in sorted(kernel.calls) for i in range(start, stop)] == list(range(num_items))


def test_ranges_hold_at_least_min_items():
    kernel = Ranges()
    WorkerPool(4).run(kernel, (), 100, 30)
    assert len(kernel.calls) == 3 and all(stop - start >= 30 for start, stop in kernel.calls)


def test_work_really_runs_side_by_side():
    both = threading.Barrier(2, timeout=10)
    met = []

    def kernel(start, stop):
        if not met:
            both.wait()
            met.append(True)

    WorkerPool(2).run(kernel, (), 2, 1)
    assert met


def test_an_error_in_a_range_reaches_the_caller_and_the_pool_lives_on():
    pool = WorkerPool(2)

    def kernel(start, stop):
        if start <= 3 < stop:
            raise ZeroDivisionError("item 3")

    with pytest.raises(ZeroDivisionError, match="item 3"):
        pool.run(kernel, (), 8, 1)
    after = Ranges()
    pool.run(after, (), 8, 1)
    assert sum(stop - start for start, stop in after.calls) == 8


def test_callers_on_several_threads_do_not_mix():
    pool = WorkerPool(2)
    kernels = [Ranges() for _ in range(4)]
    callers = [threading.Thread(target=pool.run, args=(kernel, (), 50, 1)) for kernel in kernels]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for kernel in kernels:
        assert [i for start, stop in sorted(kernel.calls) for i in range(start, stop)] == list(range(50))
