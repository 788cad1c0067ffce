"""WeightNames: where checkpoints of a family keep the decoder's tensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class WeightNames:
    """A map from our names (`engine.model.spec.tensor_shapes`) to those of a checkpoint."""

    parts: Mapping[str, str]                      # our part -> its stored name; "{layer}" stands for the layer's index
    renames: tuple[tuple[str, str], ...] = ()     # (regular expression, replacement): other spellings in circulation
    unused: tuple[str, ...] = ()                  # regular expressions of stored tensors that nothing needs

    def stored(self, name: str) -> str:
        """Our name -> stored name: layers.3.attention.q.weight -> model.layers.3.self_attn.q_proj.weight"""
        part, kind = name.rsplit(".", 1)
        layer = _LAYER.fullmatch(part)
        if layer:
            return f"{self.parts[layer[2]].format(layer=layer[1])}.{kind}"
        return f"{self.parts[part]}.{kind}"

    def canonical(self, stored: str) -> str:
        """The usual spelling of a name found in a file."""
        for pattern, replacement in self.renames:
            stored = re.sub(pattern, replacement, stored)
        return stored

    def is_unused(self, stored: str) -> bool:
        return any(re.search(pattern, stored) for pattern in self.unused)
