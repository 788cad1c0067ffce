"""An encoder driven by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.model.assemble_encoder import EncoderAssembler
from engine.model.description import ModelDescription, describe_model
from engine.model.encoder import Encoder
from engine.model.hub import ResolvedModel
from engine.model.inputs import PackedTexts
from engine.model.weights.checkpoint import Checkpoint


def describe(folder: Path, **options: Any) -> ModelDescription:
    config = EngineConfig(model=str(folder), **options)
    return describe_model(ResolvedModel("folder", folder, folder.name), config, "cpu")


def load_encoder(folder: Path, dtype: str = "float32") -> Encoder:
    it = describe(folder, dtype=dtype)
    checkpoint = Checkpoint(it.spec, it.names, it.source)
    return EncoderAssembler(it.spec, checkpoint, it.dtypes, it.device, it.max_model_len).build(lambda: None)


def packed(texts: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] = ()) -> PackedTexts:
    lengths = torch.tensor([len(text) for text in texts])
    types = [i for ids in token_types for i in ids] or [0] * int(lengths.sum())
    return PackedTexts(
        input_ids=torch.tensor([token_id for text in texts for token_id in text]),
        positions=torch.cat([torch.arange(len(text)) for text in texts]),
        token_type_ids=torch.tensor(types),
        lengths=lengths,
        query_start_loc=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int(),
        max_query_len=int(lengths.max()),
    )
