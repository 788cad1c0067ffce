"""Loading: a ModelDescription becomes a Decoder, with progress."""

import sys
from collections.abc import Collection
from dataclasses import dataclass

from tqdm import tqdm

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.assemble import Assembler
from engine.model.decoder import Decoder
from engine.model.description import ModelDescription, describe_model
from engine.model.dtypes import Dtypes
from engine.model.hub import ResolvedModel
from engine.model.spec import ModelSpec
from engine.model.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The description is not kept: its files would stay mapped."""

    decoder: Decoder
    spec: ModelSpec
    dtypes: Dtypes
    max_model_len: int
    eos_token_ids: frozenset[int]


def load_model(
    resolved: ResolvedModel, config: EngineConfig, device: str, *, num_valid_tokens: int | None = None
) -> LoadedModel:
    """The model that `config` means, ready to run on `device`; see `load_described`."""
    return load_described(describe_model(resolved, config, device), num_valid_tokens=num_valid_tokens)


def load_described(
    description: ModelDescription,
    *,
    num_valid_tokens: int | None = None,
    tokenizer_eos_token_ids: Collection[int] = (),
    show_progress: bool | None = None,
) -> LoadedModel:
    """`num_valid_tokens`: ids from there on are padding and get no logits; default: none are.

    Progress goes to stderr, by default where that is a terminal.
    """
    spec = description.spec
    num_valid_tokens = spec.vocab_size if num_valid_tokens is None else min(num_valid_tokens, spec.vocab_size)
    if num_valid_tokens < 1:
        raise ConfigError("model: the tokenizer has no tokens")
    checkpoint = Checkpoint(spec, description.names, description.source)
    assembler = Assembler(
        spec, checkpoint, description.dtypes, description.device, num_valid_tokens, description.max_model_len
    )
    hidden = not sys.stderr.isatty() if show_progress is None else not show_progress
    title = f"loading {description.resolved.name}"
    with tqdm(total=assembler.num_parts, desc=title, unit="part", disable=hidden) as bar:
        decoder = assembler.build(on_part=lambda: bar.update())
    return LoadedModel(
        decoder, spec, description.dtypes, description.max_model_len, description.eos_token_ids(tokenizer_eos_token_ids)
    )
