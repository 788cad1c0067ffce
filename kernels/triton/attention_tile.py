"""What the attention kernels share: the loop of a tile of query rows over a range of keys, paged or packed.

          keys [start, end) ->  | edge of the window |  whole tiles  | diagonal, tail |
          a tile of rows        |      masked        |  no masks     |     masked     |   (acc, max, sum) go through

rows      query rows are (token, head of a KV group) pairs: row = token · GROUP + head, so a K/V tile is read once
          for all the heads that share it
head_dim  split as D0 + D1, two powers of two (192 = 128 + 64, 96 = 64 + 32), rather than padded to the next one
scores    scale, softcap, ALiBi, mask; kept in the base-2 domain, log2(e) folded into host-side factors
softmax   online; the maximum starts at a finite -1e30, so a row that sees no key keeps sum 0 and no NaN arises
exact     input_precision "ieee": float32 stays float32 on a GPU; no other input is touched by it
pages     a tile inside one page reads one scalar page id; smaller or odd pages read a vector of ids; PAGE 0 stands
          for keys that lie one after another
"""

import triton
import triton.language as tl


@triton.jit
def find_request(query_start_loc, block, num_requests, BLOCK_Q: tl.constexpr):
    """The request whose query blocks include `block`: request r owns blocks from start[r] // BLOCK_Q + r on."""
    low, high = 0, num_requests - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_loc + middle) // BLOCK_Q + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def start_state(sinks, heads, valid, use_sink, softcap, ROWS: tl.constexpr, SINKS: tl.constexpr):
    """(max, sum) before any key: the sink with sum 1 where one takes part, else a finite floor with sum 0.

    A maximum is kept less the softcap (0: none), which every score of a capped row contains.
    """
    row_max = tl.full([ROWS], -1e30, tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    if SINKS:
        sink = tl.load(sinks + heads, mask=valid, other=0.0) * 1.4426950408889634 - softcap
        row_max, row_sum = tl.where(use_sink, sink, row_max), tl.where(use_sink, 1.0, row_sum)
    return row_max, row_sum


@triton.jit
def load_rows(pointer, rows, keep, OFFSET: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    """Channels [OFFSET, OFFSET + WIDTH) of the rows at `pointer + rows`; 0 where not kept and beyond D."""
    channels = OFFSET + tl.arange(0, WIDTH)
    pointers = pointer + rows[:, None] + channels[None, :]
    if OFFSET + WIDTH > D:
        if MASKED:
            return tl.load(pointers, mask=keep[:, None] & (channels < D)[None, :], other=0.0)
        return tl.load(pointers, mask=(channels < D)[None, :], other=0.0)
    if MASKED:
        return tl.load(pointers, mask=keep[:, None], other=0.0)
    return tl.load(pointers)


@triton.jit
def store_rows(pointer, rows, keep, tile, OFFSET: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Channels [OFFSET, OFFSET + WIDTH) of `tile` to the kept rows, never past D into the next head."""
    channels = OFFSET + tl.arange(0, WIDTH)
    mask = keep[:, None] & (channels < D)[None, :]
    tl.store(pointer + rows[:, None] + channels[None, :], tile.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _attend_tiles(
    acc0, acc1, row_max, row_sum, q0, q1, q_pos, slope,
    key_head, value_head, table_row, stride_slot, start, end, limit, window, score_scale, softcap,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, MASKED: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
):  # fmt: skip
    """Folds keys [start, end), a multiple of TILE from `start`, into the running softmax."""
    MASK_KEYS: tl.constexpr = MASKED and PAGE == 0  # beyond a last page's keys lies cache, beyond packed keys nothing
    lanes = tl.arange(0, TILE)
    for tile_start in tl.range(start, end, TILE):
        keys = tile_start + lanes
        inside = keys < limit
        if PAGE == 0:
            base = tl.cast(tile_start, tl.int64) * stride_slot
            slots = lanes * stride_slot
        elif PAGE % TILE == 0:
            page = tl.load(table_row + tile_start // PAGE).to(tl.int64)
            base = (page * PAGE + tile_start % PAGE) * stride_slot
            slots = lanes * stride_slot
        else:
            if MASKED:
                pages = tl.load(table_row + keys // PAGE, mask=inside, other=0).to(tl.int64)
            else:
                pages = tl.load(table_row + keys // PAGE).to(tl.int64)
            base = 0
            slots = (pages * PAGE + keys % PAGE) * stride_slot

        # A stale key only makes its own score NaN, which the mask replaces; a stale value would turn 0 · NaN into
        # NaN, so values alone are masked.
        k0 = load_rows(key_head + base, slots, inside, 0, D0, D, MASK_KEYS)
        scores = tl.dot(q0, tl.trans(k0.to(q0.dtype)), input_precision="ieee")
        if D1 > 0:
            k1 = load_rows(key_head + base, slots, inside, D0, D1, D, MASK_KEYS)
            scores = tl.dot(q1, tl.trans(k1.to(q1.dtype)), scores, input_precision="ieee")

        # A weight is exp2(score · factor + shift - max): what is the same for a whole row stays out of its scores.
        factor = score_scale
        shift = 0.0
        if SOFTCAP:  # cap · tanh(x) = cap - 2 · cap / (1 + exp(2x)), of which start_state has taken the first cap away
            over = 1.0 + tl.exp2(scores * score_scale)
            scores = tl.rsqrt(over * over)  # a division would take five instructions more, for its range
            factor = -2.0 * softcap  # so the least of these is the largest score
        if ALIBI:  # slope · (key - q)
            scores = tl.fma((slope / factor)[:, None], lanes.to(tl.float32)[None, :], scores)
            shift = slope * (tile_start - q_pos).to(tl.float32)
        if MASKED:
            seen = inside[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= q_pos[:, None])
            if WINDOW:
                seen = seen & (q_pos[:, None] - keys[None, :] < window)
                if not CAUSAL:
                    seen = seen & (keys[None, :] - q_pos[:, None] < window)
            scores = tl.where(seen, scores, float("inf") if SOFTCAP else float("-inf"))

        best = tl.min(scores, axis=1) if SOFTCAP else tl.max(scores, axis=1)
        new_max = tl.maximum(row_max, best * factor + shift)
        weights = tl.exp2(scores * factor - (new_max - shift)[:, None])
        decay = tl.exp2(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(weights, axis=1)
        row_max = new_max
        weights = weights.to(q0.dtype)
        v0 = load_rows(value_head + base, slots, inside, 0, D0, D, MASKED)
        acc0 = tl.dot(weights, v0.to(q0.dtype), acc0 * decay[:, None], input_precision="ieee")
        if D1 > 0:
            v1 = load_rows(value_head + base, slots, inside, D0, D1, D, MASKED)
            acc1 = tl.dot(weights, v1.to(q0.dtype), acc1 * decay[:, None], input_precision="ieee")
    return acc0, acc1, row_max, row_sum


@triton.jit
def _half(q):
    """float16, which an 8-bit key becomes by one instruction a pair; bfloat16 takes it four. Saturates at ±65504."""
    return tl.minimum(tl.maximum(q.to(tl.float32), -65504.0), 65504.0).to(tl.float16)


@triton.jit
def attend(
    row_max, row_sum, q0, q1, q_pos, q_first, q_last, slope,
    key_head, value_head, table_row, stride_slot, start, end, window, score_scale, softcap,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
    ONE_LOOP: tl.constexpr,
):  # fmt: skip
    """Softmax state of the rows over keys [start, end), `start` a multiple of TILE: (acc0, acc1, max, sum).

    Tiles that every row sees whole run without masks; only the edges of the window and of the causal diagonal,
    and the last tile, are masked. ONE_LOOP masks every tile instead, for a third of the code and fewer registers.
    Positions of the rows lie in [q_first, q_last].
    """
    if key_head.dtype.element_ty == tl.float8e4nv and q0.dtype == tl.bfloat16:
        q0, q1 = _half(q0), _half(q1)
    acc0 = tl.zeros([q0.shape[0], D0], tl.float32)
    acc1 = tl.zeros([q0.shape[0], D1 if D1 > 0 else 16], tl.float32)
    first, full_start, full_end, limit = start, start, end, end
    if CAUSAL:
        limit = tl.minimum(limit, q_last + 1)
        full_end = tl.minimum(full_end, q_first + 1)
    if WINDOW:
        first = tl.maximum(first, (tl.maximum(q_first - window + 1, 0) // TILE) * TILE)
        full_start = tl.maximum(full_start, tl.cdiv(tl.maximum(q_last - window + 1, 0), TILE) * TILE)
        if not CAUSAL:
            limit = tl.minimum(limit, q_last + window)
            full_end = tl.minimum(full_end, q_first + window)
    if ONE_LOOP:
        return _attend_tiles(
            acc0, acc1, row_max, row_sum, q0, q1, q_pos, slope, key_head, value_head, table_row, stride_slot,
            first, limit, limit, window, score_scale, softcap,
            CAUSAL, WINDOW, SOFTCAP, ALIBI, True, PAGE, TILE, D, D0, D1,
        )  # fmt: skip
    if WINDOW:
        acc0, acc1, row_max, row_sum = _attend_tiles(
            acc0, acc1, row_max, row_sum, q0, q1, q_pos, slope, key_head, value_head, table_row, stride_slot,
            first, tl.minimum(full_start, limit), limit, window, score_scale, softcap,
            CAUSAL, WINDOW, SOFTCAP, ALIBI, True, PAGE, TILE, D, D0, D1,
        )  # fmt: skip
    full_end = tl.maximum(full_end // TILE * TILE, full_start)
    acc0, acc1, row_max, row_sum = _attend_tiles(
        acc0, acc1, row_max, row_sum, q0, q1, q_pos, slope, key_head, value_head, table_row, stride_slot,
        full_start, full_end, limit, window, score_scale, softcap,
        CAUSAL, WINDOW, SOFTCAP, ALIBI, False, PAGE, TILE, D, D0, D1,
    )  # fmt: skip
    return _attend_tiles(
        acc0, acc1, row_max, row_sum, q0, q1, q_pos, slope, key_head, value_head, table_row, stride_slot,
        full_end, limit, limit, window, score_scale, softcap,
        CAUSAL, WINDOW, SOFTCAP, ALIBI, True, PAGE, TILE, D, D0, D1,
    )  # fmt: skip
