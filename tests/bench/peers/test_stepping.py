import pytest

from bench.peers.stepping import run_stepped
from bench.workloads import Workload, WorkloadRequest


class Machine:
    """An engine with room for `num_seats` requests, whose step takes a second; the clock moves by work and waiting."""

    def __init__(self, num_seats=8, tokens_per_step=1):
        self.now_s = 100.0
        self.batches = []
        self.records = {}
        self._num_seats = num_seats
        self._tokens_per_step = tokens_per_step
        self._left = {}

    def add(self, request):
        self._left[request.index] = request.output_len

    def step(self):
        self.now_s += 1
        batch = list(self._left)[: self._num_seats]
        self.batches.append(batch)
        for index in batch:
            self._left[index] -= self._tokens_per_step
            if self._left[index] <= 0:
                del self._left[index]
        return [(index, (self.now_s,) * self._tokens_per_step) for index in batch]

    def sleep(self, seconds):
        self.now_s += seconds

    def run(self, *requests):
        run_stepped(
            Workload("test", 0, {}, requests), self, lambda record: self.records.update({record.index: record}),
            clock=lambda: self.now_s, sleep=self.sleep,
        )  # fmt: skip
        return self.records


def request(index, output, **more):
    return WorkloadRequest(index, (1, 2), output, **more)


def test_requests_end_at_their_own_last_token():
    machine = Machine()
    records = machine.run(request(0, 1), request(1, 3))
    assert machine.batches == [[0, 1], [1], [1]]
    assert records[0].delivery_s == (1.0,)
    assert records[1].delivery_s == (1.0, 2.0, 3.0)
    assert (records[1].end_s, records[1].num_prompt_tokens, records[1].error) == (3.0, 2, None)


def test_a_request_joins_while_others_run_and_none_is_waited_for_idly():
    machine = Machine()
    records = machine.run(request(0, 4), request(1, 1, arrival_s=1.5), request(2, 1, arrival_s=9.0))
    assert machine.batches == [[0], [0], [0, 1], [0], [2]]
    assert (records[1].arrival_s, records[1].delivery_s) == (1.5, (3.0,))
    assert records[2].delivery_s == (10.0,)


def test_a_users_next_turn_is_due_at_the_end_of_the_turn_before():
    machine = Machine()
    records = machine.run(request(0, 2, user=0), request(1, 1, user=0))
    assert machine.batches == [[0], [0], [1]]
    assert (records[1].arrival_s, records[1].ttft_s) == (2.0, 1.0)


def test_too_many_tokens_are_an_error_of_the_request():
    records = Machine(tokens_per_step=2).run(request(0, 3))
    assert records[0].error == "4 output tokens, not 3"


def test_a_token_after_the_end_is_no_measurement():
    machine = Machine()
    machine.step = lambda: [(0, (101.0,)), (0, (101.0,))]
    with pytest.raises(RuntimeError, match="a token for request 0"):
        machine.run(request(0, 1))
