"""Decoder: the one forward pass that runs every model family.

    hidden = embedding(ids)
    for each layer:  two branches, attention and MLP, on the residual stream
    logits = head(norm(hidden))

What a model does differently is in its ModelSpec and decides which objects the layers are built of, not what is
done with them here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.kv_cache.tensors import KVCacheTensors
from engine.model.inputs import BatchInputs
from engine.model.layers.attention import Attention, Rotation
from engine.model.layers.branch import BranchNorms, normed
from engine.model.layers.embedding import Embedding
from engine.model.layers.head import Head
from engine.model.layers.mlp import MLP
from engine.model.layers.norm import Norm
from engine.model.layers.rope import Rotary
from engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    attention_norms: BranchNorms
    mlp: MLP
    mlp_norms: BranchNorms


class Decoder:
    def __init__(
        self,
        spec: ModelSpec,
        embedding: Embedding,
        rotaries: Sequence[Rotary],        # one for each of spec.ropes
        layers: Sequence[Layer],
        final_norm: Norm | None,
        head: Head,
    ) -> None:
        self.spec = spec
        self._embedding, self._rotaries, self._layers = embedding, rotaries, layers
        self._final_norm, self._head = final_norm, head

    @property
    def nbytes(self) -> int:
        """What the weights occupy, norms aside."""
        products = (
            linear for layer in self._layers
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.inner, layer.mlp.down)
        )  # fmt: skip
        return self._embedding.nbytes + self._head.nbytes + sum(linear.nbytes for linear in products)

    def forward(self, batch: BatchInputs, kv: KVCacheTensors) -> Tensor:
        """Final-normed hidden states [num_tokens, hidden_size]; writes the tokens' keys and values into `kv`."""
        residual, pending = self._embedding(batch), None
        rotations = [Rotation(*rotary.rows(batch.positions, batch.rope_lengths)) for rotary in self._rotaries]
        unrotated = Rotation(None, batch.positions)
        for index, layer in enumerate(self._layers):
            rope = self.spec.layers[index].rope
            rotation = unrotated if rope is None else rotations[rope]

            def attend(x: Tensor, index: int = index, layer: Layer = layer, rotation: Rotation = rotation) -> Tensor:
                return layer.attention(x, batch, rotation, kv.keys[index], kv.values[index])

            residual, pending = layer.attention_norms.run(attend, residual, pending)
            residual, pending = layer.mlp_norms.run(layer.mlp, residual, pending)
        return normed(self._final_norm, residual, pending)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, num_valid_tokens] for rows of `forward`'s result."""
        return self._head(hidden)
