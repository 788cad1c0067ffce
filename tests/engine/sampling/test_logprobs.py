import pytest
import torch

from engine.sampling.logprobs import prompt_logprobs, token_logprobs

VOCAB = 1000


def logits(num_rows: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(0)) * 4


def test_values_are_those_of_log_softmax():
    rows = logits(3)
    expected = torch.log_softmax(rows.double(), dim=1)
    for row, entry in enumerate(token_logprobs(rows, [5, 6, 7], [4, 4, 4])):
        assert entry.token_id == 5 + row
        assert entry.logprob == pytest.approx(float(expected[row, 5 + row]), abs=1e-5)
        best = expected[row].sort(descending=True)
        assert [token_id for token_id, _ in entry.top] == best.indices[:4].tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values[:4].tolist(), abs=1e-5)
        assert entry.rank == 1 + best.indices.tolist().index(5 + row)


def test_each_row_has_the_alternatives_it_asked_for():
    entries = token_logprobs(logits(4), [1, 1, 1, 1], [0, 3, 1, 0])
    assert [len(entry.top) for entry in entries] == [0, 3, 1, 0]
    assert entries[1].top[0] == token_logprobs(logits(4), [1, 1, 1, 1], [1, 1, 1, 1])[1].top[0]


def test_ties_go_to_the_lower_token_id():
    rows = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]])
    (entry,) = token_logprobs(rows, [3], [2])
    assert [token_id for token_id, _ in entry.top] == [1, 3]
    assert entry.rank == 2


def test_tokens_that_cannot_occur_are_no_alternatives():
    rows = torch.tensor([[0.0, float("-inf"), 1.0]])
    (entry,) = token_logprobs(rows, [0], [9])
    assert [token_id for token_id, _ in entry.top] == [2, 0]


@pytest.mark.parametrize("vocab", [1000, 32_003, 151_665])
def test_a_row_is_the_same_to_the_bit_in_any_batch(vocab):
    rows = logits(130 if vocab == 1000 else 9, vocab)
    ids = list(range(len(rows)))
    together = token_logprobs(rows, ids, [3] * len(rows))
    for start, end in ((0, 1), (1, 4), (3, 8), (len(rows) - 2, len(rows))):
        assert token_logprobs(rows[start:end], ids[start:end], [3] * (end - start)) == together[start:end]


def test_prompt_logits_are_computed_for_few_rows_at_a_time():
    hidden, head = logits(150, 8), logits(8, VOCAB)
    sizes = []

    def compute_logits(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return (rows.unsqueeze(2) * head).sum(dim=1)

    ids = [token_id % VOCAB for token_id in range(150)]
    entries = prompt_logprobs(hidden, ids, 2, compute_logits)
    assert max(sizes) <= 64
    assert list(entries) == token_logprobs((hidden.unsqueeze(2) * head).sum(dim=1), ids, [2] * 150)
