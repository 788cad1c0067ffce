import asyncio

from bench.replay import RequestFailed, replay
from bench.workloads import Workload, WorkloadRequest


def workload(*requests):
    return Workload("test", 0, {}, requests)


async def answer(request, delivered):
    for _ in range(request.output_len):
        delivered()
    return request.output_len


async def test_every_request_is_sent_once_and_recorded_in_order():
    seen = []
    requests = [WorkloadRequest(i, (1, 2), i + 1) for i in range(5)]
    records = await replay(workload(*requests), answer, seen.append)
    assert [record.index for record in records] == [0, 1, 2, 3, 4]
    assert [record.num_output_tokens for record in records] == [1, 2, 3, 4, 5]
    assert [len(record.delivery_s) for record in records] == [1, 2, 3, 4, 5]
    assert {record.error for record in records} == {None}
    assert sorted(seen, key=lambda record: record.index) == records


async def test_an_open_loop_sends_while_others_are_unanswered():
    all_sent = asyncio.Event()
    sent = []

    async def wait_for_all(request, delivered):
        sent.append(request.index)
        if len(sent) == 3:
            all_sent.set()
        await all_sent.wait()
        delivered()
        return 1

    records = await replay(workload(*(WorkloadRequest(i, (1,), 1) for i in range(3))), wait_for_all, lambda _: None)
    assert [record.error for record in records] == [None] * 3


async def test_a_request_is_not_sent_before_it_is_due():
    records = await replay(workload(WorkloadRequest(0, (1,), 1, arrival_s=0.05)), answer, lambda _: None)
    assert records[0].arrival_s == 0.05
    assert records[0].delivery_s[0] >= 0.0499


async def test_a_user_sends_only_after_the_answer_before():
    running = 0

    async def alone(request, delivered):
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        delivered()
        running -= 1
        return 1

    records = await replay(workload(*(WorkloadRequest(i, (1,), 1, user=0) for i in range(3))), alone, lambda _: None)
    assert [record.error for record in records] == [None] * 3
    assert [later.arrival_s for later in records[1:]] == [earlier.end_s for earlier in records[:-1]]


async def test_wrong_counts_and_failures_are_errors_of_their_request_alone():
    async def misbehave(request, delivered):
        if request.index == 0:
            raise RequestFailed("HTTP 500: oh")
        if request.index == 1:
            delivered()
            return 1
        if request.index == 2:
            return 2
        return await answer(request, delivered)

    records = await replay(workload(*(WorkloadRequest(i, (1,), 2) for i in range(4))), misbehave, lambda _: None)
    assert [record.error for record in records] == [
        "HTTP 500: oh",
        "1 output tokens, not 2",
        "no output was delivered",
        None,
    ]
