"""The continuous-batching loop of the llama.cpp peer, around a decode function that checks what llama.cpp would."""

import pytest

from bench.peers.slots import SlotBatcher
from bench.workloads import WorkloadRequest


class FakeLlama:
    """Keeps each slot's tokens as a KV cache does; the next token is the sum of all before it."""

    def __init__(self, num_slots, batch_tokens):
        self.batches = []
        self.cache = {slot: [] for slot in range(num_slots)}
        self.batcher = SlotBatcher(self.decode, self.forget, num_slots=num_slots, batch_tokens=batch_tokens)

    def decode(self, rows):
        assert rows, "an empty batch is refused"
        self.batches.append([(row.slot, row.position, row.wants_logits) for row in rows])
        sampled = []
        for row in rows:
            assert row.position == len(self.cache[row.slot]), "positions of a sequence are consecutive"
            self.cache[row.slot].append(row.token)
            if row.wants_logits:
                sampled.append(sum(self.cache[row.slot]))
        return sampled

    def forget(self, slot):
        self.cache[slot].clear()

    def run(self, *requests):
        for request in requests:
            self.batcher.add(request)
        wanted = {request.index: request.output_len for request in requests}
        steps = []
        while any(wanted.values()):
            steps.append(self.batcher.step())
            for index in steps[-1]:
                wanted[index] -= 1
                assert wanted[index] >= 0
        return steps


def request(index, prompt, output):
    return WorkloadRequest(index, tuple(prompt), output)


def test_a_prompt_is_one_batch_and_only_its_last_token_is_sampled_from():
    llama = FakeLlama(num_slots=1, batch_tokens=16)
    assert llama.run(request(7, (1, 2, 3), 2)) == [[7], [7]]
    assert llama.batches == [[(0, 0, False), (0, 1, False), (0, 2, True)], [(0, 3, True)]]


def test_each_generated_token_is_fed_back():
    llama = FakeLlama(num_slots=1, batch_tokens=16)
    seen = []
    llama.forget = None                                       # not called while the request runs
    llama.batcher.add(request(0, (1, 2), 4))
    for _ in range(3):
        llama.batcher.step()
        seen.append(list(llama.cache[0]))
    assert seen == [[1, 2], [1, 2, 3], [1, 2, 3, 6]]


def test_a_free_slot_is_taken_at_once_by_the_oldest_that_waits():
    llama = FakeLlama(num_slots=2, batch_tokens=16)
    steps = llama.run(request(0, (1,), 1), request(1, (1,), 3), request(2, (1,), 1), request(3, (1,), 1))
    assert steps == [[0, 1], [1, 2], [1, 3]]
    assert all(not tokens for tokens in llama.cache.values())


def test_prompts_fill_what_generating_slots_leave_of_a_batch():
    llama = FakeLlama(num_slots=2, batch_tokens=4)
    steps = llama.run(request(0, (1, 1), 3), request(1, (1,) * 6, 1))
    assert steps == [[0], [0], [0, 1]]
    assert [len(batch) for batch in llama.batches] == [4, 4, 2]
    assert [slot for slot, _, _ in llama.batches[1]] == [0, 1, 1, 1]


def test_a_prompt_longer_than_a_batch_takes_several():
    llama = FakeLlama(num_slots=1, batch_tokens=4)
    assert llama.run(request(0, range(1, 10), 1)) == [[], [], [0]]


def test_what_llama_cpp_refuses_is_raised():
    def refuse(rows):
        raise RuntimeError("llama_decode returned 1")

    batcher = SlotBatcher(refuse, lambda slot: None, num_slots=1, batch_tokens=4)
    batcher.add(request(0, (1,), 1))
    with pytest.raises(RuntimeError, match="returned 1"):
        batcher.step()
