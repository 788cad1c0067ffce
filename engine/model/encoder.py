"""Encoder: the one forward pass of the models that read a text as a whole.

    hidden = embedding(ids, token types)
    for each layer:  two branches, attention over the whole text and MLP, on the residual stream

Its parts are the decoder's but for attention, which keeps no keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.model.inputs import PackedTexts
from engine.model.layers.attention import Rotation
from engine.model.layers.branch import BranchNorms, normed
from engine.model.layers.embedding import EncoderEmbedding
from engine.model.layers.mlp import MLP
from engine.model.layers.norm import Norm
from engine.model.layers.rope import Rotary
from engine.model.layers.score_head import ScoreLayers
from engine.model.layers.self_attention import SelfAttention
from engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    attention: SelfAttention
    attention_norms: BranchNorms
    mlp: MLP
    mlp_norms: BranchNorms


class Encoder:
    def __init__(
        self,
        spec: ModelSpec,
        embedding: EncoderEmbedding,
        rotaries: Sequence[Rotary],        # one for each of spec.ropes
        layers: Sequence[EncoderLayer],
        final_norm: Norm | None,
        score: ScoreLayers | None,
    ) -> None:
        self.spec, self.score = spec, score
        self._embedding, self._rotaries, self._layers, self._final_norm = embedding, rotaries, layers, final_norm

    def forward(self, texts: PackedTexts) -> Tensor:
        """Hidden states [num_tokens, hidden_size]; a text's rows do not depend on the texts beside it."""
        residual, pending = self._embedding(texts), None
        rotations = self._rotations(texts) if self._rotaries else []
        for index, layer in enumerate(self._layers):
            rope = self.spec.layers[index].rope
            rotation = None if rope is None else rotations[rope]

            def attend(x: Tensor, layer: EncoderLayer = layer, rotation: Rotation | None = rotation) -> Tensor:
                return layer.attention(x, texts, rotation)

            residual, pending = layer.attention_norms.run(attend, residual, pending)
            residual, pending = layer.mlp_norms.run(layer.mlp, residual, pending)
        return normed(self._final_norm, residual, pending)

    def _rotations(self, texts: PackedTexts) -> list[Rotation]:
        lengths = texts.lengths.repeat_interleave(texts.lengths)
        return [Rotation(*rotary.rows(texts.positions, lengths)) for rotary in self._rotaries]
