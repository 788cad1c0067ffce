"""BatchInputs: one step as tensors, what the decoder's forward pass sees of the world."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """Requests' scheduled tokens side by side; request r owns tokens [query_start_loc[r], query_start_loc[r + 1])."""

    input_ids: "torch.Tensor"          # int64 [num_tokens]
    positions: "torch.Tensor"          # int64 [num_tokens]
    rope_lengths: "torch.Tensor"       # int64 [num_tokens]: sequence length that length-dependent rope scalings see
    query_start_loc: "torch.Tensor"    # int32 [num_requests + 1]
    seq_lens: "torch.Tensor"           # int32 [num_requests]: context including this step's tokens
    block_table: "torch.Tensor"        # int32 [num_requests, max_blocks]
    slot_mapping: "torch.Tensor"       # int64 [num_tokens]: block id · block_size + offset; -1: write nothing
    max_query_len: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step on the device. `source` says where ids are that the step before sampled and the host does not know."""

    batch: BatchInputs
    source: "torch.Tensor"             # int64 [num_tokens]: index into the last step's samples, or -1
    logits_indices: "torch.Tensor"     # int64 [num_sampling]


@dataclass(frozen=True, slots=True)
class PackedTexts:
    """Whole texts side by side, without padding; text i owns tokens [query_start_loc[i], query_start_loc[i + 1]).

    Idea: EffectiveTransformer (ByteDance, 2020).
    """

    input_ids: "torch.Tensor"          # int64 [num_tokens]
    positions: "torch.Tensor"          # int64 [num_tokens]
    token_type_ids: "torch.Tensor"     # int64 [num_tokens]: which of two texts a token belongs to
    lengths: "torch.Tensor"            # int64 [num_texts], none of them 0
    query_start_loc: "torch.Tensor"    # int32 [num_texts + 1]
    max_query_len: int
