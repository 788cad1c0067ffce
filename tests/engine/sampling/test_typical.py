import pytest
import torch
from transformers import TypicalLogitsWarper

from engine.sampling.typical import keep_typical
from tests.engine.sampling.test_sampler import draw, logits, request

INF = float("inf")


def typical(row: torch.Tensor, temperature: float, mass: float) -> torch.Tensor:
    row = row.clone()
    keep_typical(row, temperature, mass)
    return row


@pytest.mark.parametrize("mass", [0.1, 0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_set_is_that_of_transformers(mass, temperature):
    for row in logits(6):
        expected = TypicalLogitsWarper(mass)(torch.zeros(1, 1), (row / temperature)[None])[0]
        kept = typical(row, temperature, mass)
        assert torch.equal(kept > -INF, expected > -INF)
        assert torch.equal(kept[kept > -INF], row[kept > -INF])


def test_what_is_forbidden_already_stays_so_and_counts_for_nothing():
    row = logits(1)[0]
    row[:10] = -INF
    kept = typical(row, 1.0, 0.9)
    assert (kept[:10] == -INF).all()
    assert torch.equal(kept[10:], typical(row[10:].clone(), 1.0, 0.9))


def test_equal_tokens_stay_together():
    assert (typical(torch.zeros(8), 1.0, 0.3) == 0).all()


def test_draws_stay_inside_the_set_and_greedy_rows_ignore_it():
    rows = logits(1)
    allowed = (typical(rows[0], 1.0, 0.3) > -INF).nonzero().flatten().tolist()
    drawn = {draw(rows.clone(), [request(seed=seed, typical_p=0.3)])[0] for seed in range(60)}
    assert drawn <= set(allowed) and len(drawn) > 1
    best = int(rows[0].argmax())
    assert draw(rows.clone(), [request(temperature=0.0, typical_p=0.01)]) == [best]


def test_neighbours_do_not_matter():
    rows = logits(3)
    batch = [request("a", seed=1), request("b", seed=2, typical_p=0.4), request("c", seed=3)]
    alone = draw(rows[1:2].clone(), [batch[1]])
    assert draw(rows.clone(), batch)[1] == alone[0]
