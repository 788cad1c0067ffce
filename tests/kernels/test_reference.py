"""The reference against independent formulas: torch's own attention, norms and activations, and golden numbers."""

import math

import pytest
import torch
from torch.nn import functional

from kernels import reference
from kernels.testing import attention_case, varlen_case


def dense(case, r):
    """One request's query, keys and values as float64 [heads, tokens, head_dim], gathered position by position."""
    page, length = case.key_cache.shape[1], int(case.seq_lens[r])
    cells = [(int(case.block_table[r, p // page]), p % page) for p in range(length)]
    keys = torch.stack([case.key_cache[cell] for cell in cells], 1)
    values = torch.stack([case.value_cache[cell] for cell in cells], 1)
    group = case.query.shape[1] // keys.shape[0]
    query = case.query[case.rows(r)].transpose(0, 1)
    return query.double(), keys.double().repeat_interleave(group, 0), values.double().repeat_interleave(group, 0)


@pytest.mark.parametrize("page", [1, 5, 16])
def test_attention_agrees_with_torch_for_gqa_over_pages(page):
    case = attention_case([3, 1, 9], [20, 7, 9], page=page, num_query_heads=6)
    out = case.run(reference.paged_attention)
    for r in range(3):
        query, keys, values = dense(case, r)
        mask = torch.ones(query.shape[1], keys.shape[1], dtype=torch.bool).tril(keys.shape[1] - query.shape[1])
        expected = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        torch.testing.assert_close(out[case.rows(r)], expected.transpose(0, 1).float())


def test_attention_sees_everything_when_not_causal():
    case = attention_case([4], [11], causal=False)
    query, keys, values = dense(case, 0)
    expected = functional.scaled_dot_product_attention(query, keys, values)
    torch.testing.assert_close(case.run(reference.paged_attention), expected.transpose(0, 1).float())


def test_attention_scores_pass_scale_softcap_alibi_mask_and_sink_in_that_order():
    slopes, sinks = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, -1.0, 2.0, 0.0])
    case = attention_case([2], [9], softcap=2.0, window=4, alibi_slopes=slopes, sinks=sinks)
    query, keys, values = dense(case, 0)
    for head in range(4):
        for j, position in enumerate((7, 8)):
            numerator, denominator = torch.zeros(32, dtype=torch.float64), math.exp(float(sinks[head]))
            for k in range(position - 3, position + 1):
                score = 2.0 * math.tanh(float(query[head, j] @ keys[head, k]) * 32**-0.5 / 2.0)
                weight = math.exp(score + float(slopes[head]) * (k - position))
                numerator, denominator = numerator + weight * values[head, k], denominator + weight
            out = reference.paged_attention(*case.tensors, **case.options)
            torch.testing.assert_close(out[j, head], (numerator / denominator).float())


def test_attention_scales_keys_and_values_apart():
    case = attention_case([2], [9], k_scale=2.0, v_scale=3.0)
    plain = attention_case([2], [9], scale=2.0 * 32**-0.5)
    torch.testing.assert_close(case.run(reference.paged_attention), 3.0 * plain.run(reference.paged_attention))


def test_visible_keys_of_a_window_without_causality_lie_to_both_sides():
    seen = reference.visible_keys(torch.tensor([0, 3]), 6, causal=False, window=2)
    assert seen.tolist() == [[True, True, False, False, False, False], [False, False, True, True, True, False]]


def test_visible_keys_of_a_window_are_those_less_than_window_back():
    seen = reference.visible_keys(torch.tensor([4, 5]), 6, causal=True, window=2)
    assert seen.int().tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]


def rotation_by_complex_numbers(x, angles, interleaved):
    """x's pairs as complex numbers turned by exp(i · angle)."""
    half = angles.shape[-1]
    if interleaved:
        turned = torch.view_as_complex(x[..., : 2 * half].double().unflatten(-1, (half, 2)).contiguous())
    else:
        turned = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = turned * torch.polar(torch.ones_like(angles), angles)[:, None, :]
    parts = (turned.real, turned.imag)
    pair = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([pair.float(), x[..., 2 * half :]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [8, 32])
def test_rotary_turns_pairs_and_leaves_the_rest(interleaved, rotary_dim):
    angles = torch.rand(10, rotary_dim // 2, dtype=torch.float64) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).float()
    query, key, value = torch.randn(3, 4, 32), torch.randn(3, 2, 32), torch.randn(3, 2, 32)
    rows, slots = torch.tensor([9, 0, 4]), torch.tensor([5, -1, 0])
    caches = torch.full((2, 3, 2, 2, 32), math.nan)
    expected_query = rotation_by_complex_numbers(query, angles[rows], interleaved)
    expected_key = rotation_by_complex_numbers(key, angles[rows], interleaved)
    reference.rope_and_cache_write(query, key, value, cos_sin, rows, *caches, slots, interleaved=interleaved)
    torch.testing.assert_close(query, expected_query)
    torch.testing.assert_close(key, expected_key)
    assert torch.equal(caches[0, 2, 1], key[0]) and torch.equal(caches[1, 2, 1], value[0])
    assert torch.equal(caches[0, 0, 0], key[2]) and torch.equal(caches[1, 0, 0], value[2])
    assert int(caches.isfinite().sum()) == 2 * 2 * 64  # slot -1 wrote nowhere


def test_fp8_cache_values_are_scaled_and_saturate():
    key, value = torch.full((1, 1, 32), 1000.0), torch.full((1, 1, 32), -3.0)
    caches = torch.zeros(2, 1, 1, 1, 32).to(torch.float8_e4m3fn)
    reference.rope_and_cache_write(
        key.clone(), key, value, None, torch.tensor([0]), *caches, torch.tensor([0]), k_scale=2.0, v_scale=0.5
    )
    assert caches[0].float().unique().tolist() == [448.0]
    assert caches[1].float().unique().tolist() == [-6.0]


def test_norms_agree_with_torch():
    x, residual, weight, bias = torch.randn(5, 48), torch.randn(5, 48), torch.randn(48), torch.randn(48)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (48,), weight, 1e-5))
    torch.testing.assert_close(
        reference.rms_norm(x, weight, 1e-5, one_plus=True), functional.rms_norm(x, (48,), weight + 1, 1e-5)
    )
    torch.testing.assert_close(
        reference.layer_norm(x, weight, bias, 1e-5), functional.layer_norm(x, (48,), weight, bias, 1e-5)
    )
    total = x + residual
    normed = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    torch.testing.assert_close(normed, functional.rms_norm(total, (48,), weight, 1e-5))


def test_activations_gate_with_the_first_half():
    gate_up = torch.randn(3, 20)
    gate, up = gate_up[:, :10], gate_up[:, 10:]
    torch.testing.assert_close(reference.silu_and_mul(gate_up), functional.silu(gate) * up)
    for approximate in ("tanh", "none"):
        expected = functional.gelu(gate, approximate=approximate) * up
        torch.testing.assert_close(reference.gelu_and_mul(gate_up, approximate), expected)


def bits_in_plain_integers(seed, choice, position, vocab_id):
    """The rule of reference.random_bits, in Python integers."""

    def mix(h):
        h ^= h >> 16
        h = h * 0x85EBCA6B % 2**32
        h ^= h >> 13
        h = h * 0xC2B2AE35 % 2**32
        return h ^ (h >> 16)

    keys = []
    for h in (0, 1):
        for word in (seed % 2**32, seed % 2**64 >> 32, choice, position):
            h = mix(((h ^ word) + 0x9E3779B9) % 2**32)
        keys.append(h)
    return mix(mix(vocab_id ^ keys[0]) ^ keys[1])


@pytest.mark.parametrize("seed", [0, 1, -1, 2**40 + 3, -(2**63)])
def test_random_bits_follow_the_written_rule(seed):
    ids = torch.tensor([0, 1, 151935, 2**31 - 1])
    bits = reference.random_bits(torch.tensor(seed), torch.tensor(2), torch.tensor(77), ids)
    assert bits.tolist() == [bits_in_plain_integers(seed, 2, 77, i) for i in ids.tolist()]


def test_random_bits_are_pinned():
    """A change of the generator changes every seeded answer: it must be seen."""
    bits = reference.random_bits(torch.tensor(1234), torch.tensor(0), torch.tensor(10), torch.arange(3))
    assert bits.tolist() == [2373262186, 1423315349, 1484962038]


def test_uniform_stays_inside_the_open_interval_and_is_exact():
    extremes = reference.uniform(torch.tensor([0, 2**32 - 1]))
    assert extremes.tolist() == [2.0**-24, 1 - 2.0**-24]


def test_uniform_draws_are_even_over_ids_positions_and_seeds():
    n, zero = 1 << 16, torch.tensor(0)
    counters = torch.arange(n)
    for bits in (
        reference.random_bits(zero, zero, zero, counters),
        reference.random_bits(zero, zero, counters, zero),
        reference.random_bits(counters, zero, zero, zero),
    ):
        counts = torch.histc(reference.uniform(bits), bins=64, min=0, max=1)
        chi_square = float(((counts - n / 64) ** 2 / (n / 64)).sum())
        assert chi_square < 63 + 5 * math.sqrt(2 * 63)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "kept"),
    [
        (0, 1.0, 0.0, [0, 1, 2, 3, 4, 5]),
        (1, 1.0, 0.0, [1]),
        (2, 1.0, 0.0, [1, 0]),  # 0, 2 and 4 tie: the lowest id stays
        (3, 1.0, 0.0, [1, 0, 2]),
        (9, 1.0, 0.0, [0, 1, 2, 3, 4, 5]),
        (0, 0.0, 0.0, [1]),
        (0, 0.49, 0.0, [1]),
        (0, 0.51, 0.0, [1, 0]),
        (0, 0.7, 0.0, [1, 0, 2]),
        (2, 0.7, 0.0, [1]),  # of what top_k left, id 1 has 0.8
        (2, 0.81, 0.0, [1, 0]),
        (0, 1.0, 0.2, [0, 1, 2, 4]),
        (0, 1.0, 1.0, [1]),
        (3, 1.0, 0.2, [1, 0, 2]),
    ],
)
def test_filters_keep_a_prefix_of_the_ranking(top_k, top_p, min_p, kept):
    scaled = torch.log(torch.tensor([0.125, 0.5, 0.125, 0.0625, 0.125, 0.0625]))
    assert reference.kept_ids(scaled, top_k, top_p, min_p).nonzero().flatten().tolist() == sorted(kept)


def draws(logits, positions, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    rows = len(positions)
    return reference.sample(
        logits.expand(rows, -1), torch.full((rows,), temperature), torch.full((rows,), top_k),
        torch.full((rows,), top_p), torch.full((rows,), min_p), torch.full((rows,), 7),
        torch.zeros(rows, dtype=torch.int32), positions,
    )  # fmt: skip


def test_samples_follow_the_softmax_of_scaled_logits():
    logits, n = torch.tensor([2.0, 0.0, 1.0, -3.0]), 1500
    counts = torch.bincount(draws(logits, torch.arange(n), temperature=0.8), minlength=4)
    expected = torch.softmax(logits / 0.8, 0) * n
    assert float(((counts - expected) ** 2 / expected).sum()) < 3 + 5 * math.sqrt(6)


def test_a_cold_row_takes_the_lowest_id_of_the_largest():
    logits = torch.tensor([0.0, 3.0, 1.0, 3.0])
    assert draws(logits, torch.arange(4), temperature=0.0).tolist() == [1, 1, 1, 1]


def test_ids_at_minus_infinity_are_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0])
    assert set(draws(logits, torch.arange(50)).tolist()) == {1, 3}


@pytest.mark.parametrize("causal", [True, False])
def test_varlen_attention_agrees_with_torch_request_by_request(causal):
    case = varlen_case([3, 0, 9], num_query_heads=6, causal=causal)
    out = case.run(reference.varlen_attention)
    for r in range(3):
        query, key, value = (x[case.rows(r)].transpose(0, 1).double() for x in (case.query, case.key, case.value))
        key, value = key.repeat_interleave(3, 0), value.repeat_interleave(3, 0)
        expected = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        torch.testing.assert_close(out[case.rows(r)], expected.transpose(0, 1).float())


def test_penalties_follow_their_formulas_in_order():
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0, 1.0, 1.0], [3.0] * 6])
    starts, ids = torch.tensor([0, 4, 4]), torch.tensor([0, 1, 2, 3])
    reference.apply_penalties(
        logits, starts, ids, torch.tensor([0, 0, 3, 1]), torch.tensor([2.0, 9.0]), torch.tensor([0.25, 9.0]),
        torch.tensor([0.125, 9.0]), torch.tensor([0, 2, 3]), torch.tensor([3, 4, 5]), torch.tensor([10.0, -1.0, 1.0]),
        torch.tensor([0, 1, 1]), torch.tensor([0]), torch.tensor([[0b011111], [0b101111]], dtype=torch.int32),
    )  # fmt: skip
    expected = [
        [-math.inf, -4.0, 0.5 - 0.75 - 0.125, 0.5 - 0.25 - 0.125 + 10, 0.0, -math.inf],
        [3.0, 3.0, 3.0, 3.0, -math.inf, 4.0],
    ]
    assert logits.tolist() == expected


def test_block_copies_leave_the_other_blocks():
    caches = torch.arange(2 * 4 * 6.0).reshape(2, 4, 3, 1, 2)
    before = caches.clone()
    reference.copy_blocks(*caches, torch.tensor([[3, 0], [1, 2]]))
    assert torch.equal(caches, before[:, [3, 1, 1, 3]])
    host = torch.zeros(5, 3, 1, 2)
    reference.swap_blocks(before[0], host, torch.tensor([[2, 4]]))
    assert torch.equal(host[4], before[0, 2]) and not host[:4].any()
