"""Self-attention of one layer over the paged KV cache."""

from dataclasses import dataclass

from torch import Tensor

from engine.model.inputs import BatchInputs
from engine.model.layers.linear import Linear
from engine.model.spec import LayerSpec, ModelSpec
from kernels import ops


@dataclass(frozen=True, slots=True)
class Rotation:
    """How this step's tokens are rotated; no table, no rotation."""

    cos_sin: Tensor | None     # float32 [rows, rotary_dim]
    rows: Tensor               # [num_tokens]


class Attention:
    def __init__(
        self,
        spec: ModelSpec,
        layer: LayerSpec,
        qkv: Linear,                       # query, key and value rows one below the other
        output: Linear,
        q_norm: Tensor | None = None,      # [head_dim]
        k_norm: Tensor | None = None,
    ) -> None:
        self._spec, self._layer = spec, layer
        self.qkv, self.output = qkv, output
        self._q_norm, self._k_norm = q_norm, k_norm

    def __call__(
        self, x: Tensor, batch: BatchInputs, rotation: Rotation, key_cache: Tensor, value_cache: Tensor
    ) -> Tensor:
        spec, num_tokens = self._spec, x.shape[0]
        packed = self.qkv(x).view(num_tokens, -1, spec.head_dim)  # [num_tokens, query + key + value heads, head_dim]
        first_key, first_value = spec.num_query_heads, spec.num_query_heads + spec.num_kv_heads
        query, key, value = packed[:, :first_key], packed[:, first_key:first_value], packed[:, first_value:]
        ops.rope_and_cache_write(
            query, key, value, rotation.cos_sin, rotation.rows, key_cache, value_cache, batch.slot_mapping,
            q_norm_weight=self._q_norm, k_norm_weight=self._k_norm, eps=spec.norm.eps,
            norm_one_plus=spec.norm.one_plus,
        )  # fmt: skip
        attended = ops.paged_attention(
            query, key_cache, value_cache, batch.block_table, batch.seq_lens, batch.query_start_loc,
            scale=spec.attention_scale, max_query_len=batch.max_query_len, window=self._layer.window,
            softcap=spec.attention_softcap,
        )  # fmt: skip
        return self.output(attended.view(num_tokens, spec.query_size))
