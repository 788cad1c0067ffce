"""Self-attention of one layer of an encoder: packed texts, each over itself, nothing kept."""

import torch
from torch import Tensor

from engine.model.inputs import PackedTexts
from engine.model.layers.attention import Rotation
from engine.model.layers.linear import Linear
from engine.model.spec import LayerSpec, ModelSpec
from kernels import ops


class SelfAttention:
    def __init__(self, spec: ModelSpec, layer: LayerSpec, qkv: Linear, output: Linear) -> None:
        self._spec, self._layer = spec, layer
        self.qkv, self.output = qkv, output

    def __call__(self, x: Tensor, texts: PackedTexts, rotation: Rotation | None) -> Tensor:
        spec, num_tokens = self._spec, x.shape[0]
        packed = self.qkv(x).view(num_tokens, -1, spec.head_dim)  # [num_tokens, query + key + value heads, head_dim]
        first_key, first_value = spec.num_query_heads, spec.num_query_heads + spec.num_kv_heads
        query, key, value = packed[:, :first_key], packed[:, first_key:first_value], packed[:, first_value:]
        if rotation is not None:
            key, value = _rotated(query, key, value, rotation)
        attended = ops.varlen_attention(
            query, key, value, texts.query_start_loc, scale=spec.attention_scale, max_query_len=texts.max_query_len,
            causal=False, window=self._layer.window, softcap=spec.attention_softcap,
        )  # fmt: skip
        return self.output(attended.view(num_tokens, spec.query_size))


def _rotated(query: Tensor, key: Tensor, value: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Rotates `query` in place; key and value come back as a cache of one-token blocks, which the op writes anyway."""
    keys, values = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (key, value))
    slots = torch.arange(key.shape[0], device=key.device)
    ops.rope_and_cache_write(
        query, key, value, rotation.cos_sin, rotation.rows, keys.unsqueeze(1), values.unsqueeze(1), slots
    )
    return keys, values
