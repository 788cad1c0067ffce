import pytest
import torch

from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Sampler

VOCAB = 64
NAN, INF = float("nan"), float("inf")


def request(name: str = "r", choice: int = 0, **params) -> GenerationRequest:
    return GenerationRequest(name, (1,), SamplingParams(max_tokens=9, **params), choice=choice)


def logits(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(0))


def draw(rows: torch.Tensor, requests: list[GenerationRequest], positions=None) -> list[int | None]:
    drawn: list[int] = Sampler().sample(rows, requests, positions or [5] * len(requests)).tolist()
    return [None if token < 0 else token for token in drawn]


def test_greedy_takes_the_most_likely_token():
    rows = logits(3)
    assert draw(rows, [request(temperature=t) for t in (0.0, 1e-6, 1e-9)]) == rows.argmax(dim=1).tolist()


@pytest.mark.parametrize("first, second", [
    ((request(seed=1), 5), (request(seed=2), 5)),
    ((request(seed=1), 5), (request(seed=1, choice=1), 5)),
    ((request(seed=1), 5), (request(seed=1), 6)),
])  # fmt: skip
def test_seed_choice_and_position_each_change_the_draws(first, second):
    rows = torch.zeros(40, VOCAB)

    def draws(case: tuple[GenerationRequest, int]) -> list[int | None]:
        return [draw(rows[:1], [case[0]], [case[1] + 100 * i])[0] for i in range(20)]

    assert draws(first) == draws(first)
    assert draws(first) != draws(second)


def test_a_row_is_drawn_alike_alone_and_in_any_batch():
    rows = logits(4)
    parameters = [{"seed": 7}, {"top_k": 3, "seed": 8}, {"temperature": 0.0}, {"top_p": 0.5}]
    requests = [request(name, **params) for name, params in zip("abcd", parameters, strict=True)]
    positions = [3, 4, 5, 6]
    together = draw(rows, requests, positions)
    assert together == [draw(rows[i:i + 1], [requests[i]], [positions[i]])[0] for i in range(4)]
    assert together[::-1] == draw(rows.flip(0), requests[::-1], positions[::-1])


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 1e-4}, {"min_p": 1.0}])
def test_filters_that_leave_one_token_leave_the_best(filters):
    rows = logits(8)
    assert draw(rows, [request(seed=i, **filters) for i in range(8)]) == rows.argmax(dim=1).tolist()


def test_the_parameters_follow_the_batch():
    sampler, rows = Sampler(), torch.zeros(1, VOCAB)
    first = [sampler.sample(rows, [request(seed=1)], [i])[0] for i in range(10)]
    second = [sampler.sample(rows, [request(seed=2)], [i])[0] for i in range(10)]
    assert first != second
    assert first == [sampler.sample(rows, [request(seed=1)], [i])[0] for i in range(10)]


def test_the_parameters_are_built_once_for_one_batch():
    sampler, batch = Sampler(), [request("a"), request("b")]
    sampler.sample(logits(2), batch, [1, 1])
    built = sampler._parameters
    sampler.sample(logits(2), list(batch), [2, 2])
    assert sampler._parameters is built


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spoil", [
    lambda row: row.fill_(NAN), lambda row: row.fill_(-INF), lambda row: row[3:4].fill_(NAN),
    lambda row: row[3:4].fill_(INF),
])  # fmt: skip
def test_a_row_that_is_not_finite_fails_alone(spoil, temperature):
    rows, requests = logits(3), [request(name, temperature=temperature, seed=3) for name in "abc"]
    healthy = draw(rows, requests)
    spoil(rows[1])
    assert draw(rows, requests) == [healthy[0], None, healthy[2]]


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 - 1, 2**70 + 5])
def test_any_seed_can_be_used(seed):
    assert draw(logits(1), [request(seed=seed)]) == draw(logits(1), [request(seed=seed % 2**64)])


def test_huge_top_k_is_no_filter():
    assert draw(logits(1), [request(seed=1, top_k=10**12)]) == draw(logits(1), [request(seed=1)])


def test_an_empty_batch_has_no_tokens():
    assert draw(logits(0), []) == []
