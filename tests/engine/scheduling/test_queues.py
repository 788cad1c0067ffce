from engine.request import GenerationRequest, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.queues import RunningQueue, WaitingQueue


def request(index: int, priority: int = 0, tenant: str | None = None) -> Request:
    generation = GenerationRequest(str(index), (1,), SamplingParams(max_tokens=1), priority=priority, tenant=tenant)
    return Request(generation, 0.0, arrival_index=index)


def ids(queue: WaitingQueue | RunningQueue) -> list[int]:
    return [int(request.request_id) for request in queue]


def test_waiting_is_first_come_first_served_within_a_priority():
    queue = WaitingQueue()
    for index, priority in enumerate([1, 0, 1, -5, 0]):
        queue.append(request(index, priority))
    assert ids(queue) == [3, 1, 4, 0, 2]
    assert len(queue) == 5


def test_preempted_goes_before_its_own_priority_only():
    queue = WaitingQueue()
    for index, priority in enumerate([0, 1]):
        queue.append(request(index, priority))
    queue.push_front(request(2, priority=1))
    assert ids(queue) == [0, 2, 1]


def test_waiting_request_is_removed_from_the_middle():
    queue = WaitingQueue()
    requests = [request(index) for index in range(4)]
    for each in requests:
        queue.append(each)
    queue.remove(requests[2])
    assert (ids(queue), len(queue)) == ([0, 1, 3], 3)


def test_emptied_priority_leaves_nothing_behind():
    queue = WaitingQueue()
    a, b = request(0, priority=7), request(1, priority=3)
    for each in (a, b):
        queue.append(each)
    queue.remove(a)
    queue.remove(b)
    assert (ids(queue), len(queue), queue._all._by_priority, queue._all._priorities) == ([], 0, {}, [])


def tenants(queue: WaitingQueue) -> dict[str | None, list[int]]:
    return {tenant: [int(request.request_id) for request in line] for tenant, line in queue.by_tenant.items()}


def test_each_tenant_has_a_line_of_its_own_in_the_order_of_all():
    queue = WaitingQueue()
    requests = [request(index, priority, tenant) for index, (priority, tenant) in enumerate(
        [(0, "a"), (1, "b"), (0, None), (1, "a"), (0, "b")]
    )]  # fmt: skip
    for each in requests[:3]:
        queue.append(each)
    assert tenants(queue) == {"a": [0], "b": [1], None: [2]}
    for each in requests[3:]:
        queue.append(each)
    assert tenants(queue) == {"a": [0, 3], "b": [4, 1], None: [2]}
    queue.remove(requests[0])
    queue.remove(requests[2])
    queue.push_front(request(5, 1, "a"))
    assert tenants(queue) == {"a": [5, 3], "b": [4, 1]}
    assert ids(queue) == [4, 5, 1, 3]


def test_running_is_sorted_by_priority_then_arrival():
    queue = RunningQueue()
    for index, priority in [(5, 0), (2, 1), (0, 0), (1, -1)]:
        queue.add(request(index, priority))
    assert ids(queue) == [1, 0, 5, 2]
    assert [int(request.request_id) for request in reversed(queue)] == [2, 5, 0, 1]


def test_running_request_is_removed_wherever_it_is():
    queue = RunningQueue()
    requests = [request(index) for index in range(4)]
    for each in requests:
        queue.add(each)
    queue.remove(requests[1])
    queue.remove(requests[3])
    assert (ids(queue), len(queue)) == ([0, 2], 2)
