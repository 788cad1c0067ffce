from bench.peers.static_batches import run_static_batches
from bench.workloads import Workload, WorkloadRequest


class Machine:
    """A clock that only work and waiting move: every token of a batch takes a second."""

    def __init__(self):
        self.now_s = 100.0
        self.batches = []
        self.records = []

    def sleep(self, seconds):
        self.now_s += seconds

    def generate(self, requests, num_tokens, on_step):
        self.batches.append(([request.index for request in requests], num_tokens))
        for _ in range(num_tokens):
            self.now_s += 1
            on_step()

    def run(self, *requests, batch_size):
        run_static_batches(
            Workload("test", 0, {}, requests), self.generate, self.records.append,
            batch_size=batch_size, clock=lambda: self.now_s, sleep=self.sleep,
        )
        return {record.index: record for record in self.records}


def request(index, output, **more):
    return WorkloadRequest(index, (1, 2), output, **more)


def test_a_batch_runs_to_its_longest_member_and_counts_only_what_was_asked_for():
    machine = Machine()
    records = machine.run(request(0, 2), request(1, 5), request(2, 1), batch_size=2)
    assert machine.batches == [([0, 1], 5), ([2], 1)]
    assert records[0].num_output_tokens == 2
    assert records[0].delivery_s == (1.0, 2.0)
    assert [records[i].end_s for i in range(3)] == [5.0, 5.0, 6.0]
    assert records[2].ttft_s == 6.0                   # it waited for the whole first batch


def test_a_batch_takes_only_what_has_arrived_and_waits_for_the_first():
    machine = Machine()
    machine.run(request(0, 3, arrival_s=2.0), request(1, 1, arrival_s=4.0), request(2, 1, arrival_s=9.0), batch_size=8)
    assert machine.batches == [([0], 3), ([1], 1), ([2], 1)]
    assert [record.delivery_s[0] for record in machine.records] == [3.0, 6.0, 10.0]


def test_a_users_next_turn_is_due_when_the_batch_of_the_turn_before_has_ended():
    machine = Machine()
    records = machine.run(
        request(0, 2, user=0), request(1, 1, user=0), request(2, 4, user=1), request(3, 1, user=1), batch_size=2
    )
    assert machine.batches == [([0, 2], 4), ([1, 3], 1)]
    assert (records[1].arrival_s, records[3].arrival_s) == (4.0, 4.0)
