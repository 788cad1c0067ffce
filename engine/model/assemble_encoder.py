"""An encoder built from a checkpoint, tensor by tensor."""

from collections.abc import Callable

from engine.model.encoder import Encoder, EncoderLayer
from engine.model.layers.branch import BranchNorms
from engine.model.layers.embedding import EncoderEmbedding
from engine.model.layers.mlp import PLAIN
from engine.model.layers.rope import Rotary
from engine.model.layers.score_head import ScoreLayers
from engine.model.layers.self_attention import SelfAttention
from engine.model.parts import Parts
from engine.model.spec import LayerSpec


class EncoderAssembler(Parts):
    """One layer after the other: encoders are small, and nothing is gained by reading two at once."""

    @property
    def num_parts(self) -> int:
        return self._spec.num_layers + 1

    def build(self, on_part: Callable[[], None]) -> Encoder:
        """The encoder; `on_part` is called once for each of `num_parts` parts, as it is ready."""
        spec, layers = self._spec, []
        token_types = self._table("token_types.weight") if spec.token_types else None
        embedding = EncoderEmbedding(
            self._embedding(), token_types, self._norm("embedding_norm") if spec.embedding_norm else None
        )
        on_part()
        for index, layer in enumerate(spec.layers):
            layers.append(self._layer(index, layer))
            on_part()
        return Encoder(
            spec,
            embedding,
            [Rotary(rope, self._max_model_len, self._device) for rope in spec.ropes],
            layers,
            self._norm("final_norm") if spec.final_norm else None,
            self._score_layers(),
        )

    def _layer(self, index: int, layer: LayerSpec) -> EncoderLayer:
        prefix = f"layers.{index}."
        return EncoderLayer(
            SelfAttention(self._spec, layer, *self._attention_products(prefix)),
            self._branch_norms(f"{prefix}attention") if layer.attention_norm else BranchNorms(),
            self._mlp(prefix),
            self._branch_norms(f"{prefix}mlp"),
        )

    def _score_layers(self) -> ScoreLayers | None:
        head = self._spec.score_head
        if head is None:
            return None
        norm = self._norm("score.norm") if head.norm else None
        return ScoreLayers(
            self._linear("score.dense"), PLAIN[head.activation], norm, self._linear("score.output")
        )
