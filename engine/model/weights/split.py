"""SplitSource: a source whose stacked tensors appear as their parts."""

from collections.abc import Mapping

from torch import Tensor

from engine.model.weights.source import StoredTensor, TensorSource


class SplitSource:
    """A TensorSource over another one.

    `splits` maps a word of a stored name to the words that stand for its equal parts, from the first row to the last:
    {"Wqkv": ("Wq", "Wk", "Wv")} makes three tensors of `layers.0.attn.Wqkv.weight`.
    """

    def __init__(self, source: TensorSource, splits: Mapping[str, tuple[str, ...]]) -> None:
        self._source = source
        self._parts: dict[str, tuple[str, int, int]] = {}   # name of a part -> (stored name, first row, end row)
        tensors: dict[str, StoredTensor] = {}
        for stored, tensor in source.tensors.items():
            word = next((word for word in stored.split(".") if word in splits), None)
            if word is None:
                tensors[stored] = tensor
                continue
            num_rows = tensor.shape[0] // len(splits[word])
            for index, part in enumerate(splits[word]):
                name = ".".join(part if w == word else w for w in stored.split("."))
                self._parts[name] = (stored, index * num_rows, (index + 1) * num_rows)
                tensors[name] = StoredTensor((num_rows, *tensor.shape[1:]), tensor.file)
        self.tensors: Mapping[str, StoredTensor] = tensors

    def rows(self, name: str) -> Tensor:
        return self.read(name)

    def read(self, name: str) -> Tensor:
        if name not in self._parts:
            return self._source.read(name)
        stored, first, end = self._parts[name]
        return self._source.read(stored)[first:end]
