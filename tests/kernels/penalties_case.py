"""Random inputs of apply_penalties, with NaN and wild ids wherever a correct kernel has no business."""

import math

import torch

from kernels import reference
from kernels.testing import assert_close, start_locations


def penalties_case(listed=(5, 0, 40), biased=(0, 2, 9), ending=(1, 0, 6), *, vocab=70, bitmask=False, seed=0):
    """Keyword arguments of the op; the counts of listed, biased and ending ids are per row.

    Logits that no list names are NaN, and each list is a slice of a longer one that points far outside the row.
    """
    rng = torch.Generator().manual_seed(seed)
    num_rows = len(listed)

    def draw(lengths):
        return [torch.randperm(vocab, generator=rng)[:length] for length in lengths]

    token_ids, bias_ids, ending_ids = draw(listed), draw(biased), draw(ending)
    logits = torch.full((num_rows, vocab), math.nan)
    for row, *ids in zip(logits, token_ids, bias_ids, strict=True):
        named = torch.cat(ids)
        row[named] = torch.randn(vocab, generator=rng)[named] * 3
    case = {
        "logits": logits,
        "row_start_loc": start_locations(listed),
        "token_ids": sliced(torch.cat(token_ids).int(), 1 << 30),
        "counts": sliced(torch.randint(0, 4, (sum(listed),), generator=rng, dtype=torch.int32), 1 << 30),
        "repetition": torch.rand(num_rows, generator=rng) + 0.5,
        "frequency": torch.randn(num_rows, generator=rng),
        "presence": torch.randn(num_rows, generator=rng),
        "bias_start_loc": start_locations(biased),
        "bias_ids": sliced(torch.cat(bias_ids).int(), 1 << 30),
        "biases": sliced(torch.randn(sum(biased), generator=rng), math.nan),
        "ending_start_loc": start_locations(ending),
        "ending_ids": sliced(torch.cat(ending_ids).int(), 1 << 30),
    }
    if bitmask:
        words = torch.randint(-(2**31), 2**31, (num_rows, -(-vocab // 32)), generator=rng)
        case["bitmask"] = words.int()
    return case


def sliced(values, around):
    """The values as the middle of a longer tensor."""
    longer = torch.full((values.numel() + 7,), around, dtype=values.dtype)
    longer[3:-4] = values
    return longer[3:-4]


def check_penalties(implementation, *args, **options):
    """Runs the kernel and compares each logit with the reference, those that nothing names included."""
    case, twin = penalties_case(*args, **options), penalties_case(*args, **options)
    implementation(**case)
    reference.apply_penalties(**twin)
    actual, expected = case["logits"], twin["logits"]
    assert torch.equal(actual.isnan(), expected.isnan()), "a logit that no list names was written"
    assert torch.equal(actual == -math.inf, expected == -math.inf), "another token is masked"
    finite = expected.isfinite()
    assert_close(actual[finite], expected[finite], 1, "logits")
    return actual


def alone(case, row):
    """One row of a case as a batch of its own."""
    part = {name: case[name][row : row + 1] for name in ("logits", "repetition", "frequency", "presence", "bitmask")}
    lists = (
        ("row_start_loc", "token_ids", "counts"), ("bias_start_loc", "bias_ids", "biases"),
        ("ending_start_loc", "ending_ids"),
    )  # fmt: skip
    for starts, *names in lists:
        first, end = case[starts][row : row + 2].tolist()
        part[starts] = start_locations([end - first])
        part.update({name: case[name][first:end] for name in names})
    return part
