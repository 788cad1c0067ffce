"""Pure-torch twins of every op: the truth that tests and benches compare against.

Everything is computed in float64, whatever the inputs, and rounded once to the output's dtype.
Slow and plain on purpose: loops over requests and rows, no tricks. Signatures are those of `kernels.ops`.
"""

import math

import torch
from torch import Tensor

GREEDY_TEMPERATURE = 1e-5  # rows colder than this take the argmax
_MASK32 = 0xFFFFFFFF


def visible_keys(query_positions: Tensor, num_keys: int, causal: bool, window: int) -> Tensor:
    """Which keys each query sees: bool [num_queries, num_keys]. A window keeps keys with q - k < window."""
    distance = query_positions[:, None] - torch.arange(num_keys, device=query_positions.device)[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window > 0:
        seen &= distance < window
    return seen


def paged_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_table: Tensor,  # [num_requests, max_blocks]
    seq_lens: Tensor,  # [num_requests]
    query_start_loc: Tensor,  # [num_requests + 1]
    *,
    scale: float,
    max_query_len: int,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """Attention of each request's new tokens over its paged context.

    Query token j of request r sits at position seq_lens[r] - q_len[r] + j. Scores go through scale, softcap
    (cap · tanh(s / cap)), mask and ALiBi (slope · (k - q)), in that order. A sink is a score per head that
    takes part in the denominator only. A row that sees no key is exactly 0.
    """
    out = torch.zeros_like(query)
    num_query_heads, num_kv_heads, block_size = query.shape[1], key_cache.shape[2], key_cache.shape[1]
    group = num_query_heads // num_kv_heads
    starts = query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[r], starts[r + 1])
        q_len = rows.stop - rows.start
        if q_len == 0 or seq_len == 0:
            continue
        positions = torch.arange(seq_len, device=query.device)
        blocks, offsets = block_table[r].long()[positions // block_size], positions % block_size
        # [num_query_heads, seq_len, head_dim]
        keys = (key_cache[blocks, offsets].double() * k_scale).transpose(0, 1).repeat_interleave(group, 0)
        values = (value_cache[blocks, offsets].double() * v_scale).transpose(0, 1).repeat_interleave(group, 0)
        q_positions = torch.arange(seq_len - q_len, seq_len, device=query.device)
        scores = query[rows].double().transpose(0, 1) @ keys.transpose(1, 2) * scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        if alibi_slopes is not None:
            distance = (positions[None, :] - q_positions[:, None]).double()
            scores = scores + alibi_slopes.double()[:, None, None] * distance
        seen = visible_keys(q_positions, seq_len, causal, window)
        scores = scores.masked_fill(~seen, -math.inf)
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, q_len, 1)
            weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
        else:
            weights = torch.softmax(scores, dim=-1)
        weights = weights.masked_fill(~seen.any(dim=1)[None, :, None], 0.0)  # softmax of an empty row is NaN
        out[rows] = (weights @ values).transpose(0, 1).to(out.dtype)
    return out


def _rms(x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return normed * (weight.double() + 1.0 if one_plus else weight.double())


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of the first 2 · cos.shape[-1] channels of x [T, H, D]; the rest pass through.

    NeoX pairs channel i with i + rotary_dim / 2; interleaved (GPT-J) pairs channel 2i with 2i + 1.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned, rest], dim=-1)


def to_cache_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds to the cache's dtype; FP8 casts do not saturate everywhere, so values are clamped first."""
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        x = x.clamp(-limit, limit)
    return x.to(dtype)


def rope_and_cache_write(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    cos_sin: Tensor | None,  # [rows, rotary_dim]: cos in the first half, sin in the second
    rope_rows: Tensor,  # [num_tokens]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    slot_mapping: Tensor,  # [num_tokens]
    *,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_one_plus: bool = False,
    interleaved: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """QK-norm (optional), then rotation, of query and key in place; then key / k_scale and value / v_scale into
    the cache slots. Slot -1 marks a padding row: rotated, never written."""
    q, k = query.double(), key.double()
    if q_norm_weight is not None:
        q = _rms(query, q_norm_weight, eps, norm_one_plus)
    if k_norm_weight is not None:
        k = _rms(key, k_norm_weight, eps, norm_one_plus)
    if cos_sin is not None:
        cos, sin = cos_sin[rope_rows.long()].double().chunk(2, dim=-1)
        q, k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
    query.copy_(q)
    key.copy_(k)
    written = slot_mapping >= 0
    blocks = slot_mapping[written] // key_cache.shape[1]
    offsets = slot_mapping[written] % key_cache.shape[1]
    key_cache[blocks, offsets] = to_cache_dtype(k[written] / k_scale, key_cache.dtype)
    value_cache[blocks, offsets] = to_cache_dtype(value[written].double() / v_scale, value_cache.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """x / rms(x) · weight over the last dimension; Gemma's form multiplies by 1 + weight."""
    return _rms(x, weight, eps, one_plus).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """residual += x in place, rounded to its dtype; returns the RMS norm of the rounded sum."""
    residual.copy_(residual.double() + x.double())
    return _rms(residual, weight, eps, one_plus).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · weight + bias over the last dimension."""
    centred = x.double() - x.double().mean(dim=-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps) * weight.double()
    return (normed if bias is None else normed + bias.double()).to(x.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, for gate_up [num_tokens, 2 · width] holding the gate first."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    """gelu(gate) · up, for gate_up [num_tokens, 2 · width]; approximate is "tanh" or "none" (erf)."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(gate_up.dtype)


def mix32(h: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser, a bijection. uint32 arithmetic, held in int64 here."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _MASK32
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _MASK32
    return h ^ (h >> 16)


def random_bits(seed: Tensor, choice: Tensor, position: Tensor, vocab_id: Tensor) -> Tensor:
    """The counter RNG: 32 random bits (in int64) that depend on these four integers only. Inputs broadcast.

    Normative for every implementation; all arithmetic is modulo 2**32:
        absorb(h, word) = mix32((h ^ word) + 0x9E3779B9)
        key(start)      = absorb(absorb(absorb(absorb(start, seed & 0xFFFFFFFF), seed >> 32), choice), position)
        bits            = mix32(mix32(vocab_id ^ key(0)) ^ key(1))
    seed is int64, taken as 64 raw bits (seed >> 32 is its upper half, unsigned). Two keys, because with one the
    draws of two rows whose keys differ in low bits only would be permutations of each other.
    """

    def key(start: int) -> Tensor:
        h = torch.full_like(seed, start)
        for word in (seed, seed >> 32, choice.long(), position.long()):
            h = mix32(((h ^ (word & _MASK32)) + 0x9E3779B9) & _MASK32)
        return h

    return mix32(mix32(vocab_id.long() ^ key(0)) ^ key(1))


def uniform(bits: Tensor) -> Tensor:
    """float32 in the open interval (0, 1): ((bits >> 9) + 0.5) · 2**-23.

    23 bits, not 24: with 24 the half no longer fits float32's significand and the largest value rounds to 1.
    """
    return ((bits >> 9).float() + 0.5) * 2.0**-23


def kept_ids(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """bool [vocab]: the ids that one row's filters leave, given its temperature-scaled logits.

    Ids are ranked by (value descending, id ascending), so of tied values the lowest id comes first. Each filter
    keeps a prefix of that ranking; they compose in the order top_k, top_p, min_p, and rank 0 is always kept.
        top_k  the first top_k ranks (0 or less, or at least the vocabulary: off)
        top_p  rank i stays while the mass of the ranks before it is < top_p · (mass of what top_k left); 1: off
        min_p  ids with value >= largest value + log(min_p), computed in float32 (0: off)
    """
    order = torch.argsort(scaled, descending=True, stable=True)
    ranked = scaled[order]
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if 0 < top_k < ranked.numel():
        keep[top_k:] = False
    if top_p < 1.0:
        mass = torch.exp((ranked - ranked[0]).double()) * keep
        keep &= mass.cumsum(0) - mass < top_p * mass.sum()
    if min_p > 0.0:
        keep &= ranked >= ranked[0] + torch.log(torch.tensor(min_p, dtype=torch.float32))
    keep[0] = True
    return torch.zeros_like(keep).scatter_(0, order, keep)


def sample(
    logits: Tensor,  # float32 [num_rows, vocab]
    temperature: Tensor,  # float32 [num_rows]
    top_k: Tensor,  # int32 [num_rows]
    top_p: Tensor,  # float32 [num_rows]
    min_p: Tensor,  # float32 [num_rows]
    seeds: Tensor,  # int64 [num_rows]
    choices: Tensor,  # int32 [num_rows]
    positions: Tensor,  # int32 [num_rows]: tokens before the sampled one
) -> Tensor:
    """One token id per row, int64 [num_rows].

    Cold rows (temperature < 1e-5) take the argmax. Others take the argmax, over the ids that the filters keep
    (`kept_ids`), of logits / temperature - log(-log(u)), u drawn per id by the counter RNG: an exact sample of
    the filtered softmax. In every argmax the lowest id wins ties. Division and sum are float32. Where the mass
    before a rank equals top_p to within rounding, implementations may differ by that rank.
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row in range(logits.shape[0]):
        if float(temperature[row]) < GREEDY_TEMPERATURE:
            out[row] = first_argmax(logits[row])
            continue
        scaled = logits[row] / temperature[row]
        keep = kept_ids(scaled, int(top_k[row]), float(top_p[row]), float(min_p[row]))
        u = uniform(random_bits(seeds[row], choices[row], positions[row], ids))
        noisy = scaled - torch.log(-torch.log(u.double())).float()
        out[row] = first_argmax(noisy.masked_fill(~keep, -math.inf))
    return out


def first_argmax(x: Tensor) -> Tensor:
    """The lowest index that holds the maximum (torch.argmax promises no particular one)."""
    return (x == x.max()).nonzero()[0, 0]
