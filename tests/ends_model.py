"""SCRIPT with end tokens that its files disagree on, as those of many published chat models do."""

import json
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers_gguf import write_gguf
from tests.scripted_model import write_scripted_model
from tests.tiny_tokenizer import EOS

OTHER = "<|im_start|>"                             # the end token of a base model, which nothing here ever says
TEXT = " UNO DUE"                                  # answered to any prompt that ends in "U", before the end token EOS


def write_ends_model(folder: Path, *, tokenizer: str, config: str | None, generation: list[str] | str | None) -> None:
    """A folder whose files name these end tokens; `generation` None: it has no generation_config.json."""
    write_scripted_model(folder, {"U": " UNO| DUE"}, {})
    ids = end_token_ids(folder)
    _edit(folder / "tokenizer_config.json", eos_token=tokenizer)
    _edit(folder / "config.json", eos_token_id=config and ids[config])
    if generation is None:
        (folder / "generation_config.json").unlink()
    else:
        named = [ids[token] for token in generation] if isinstance(generation, list) else ids[generation]
        _edit(folder / "generation_config.json", eos_token_id=named)


def write_ends_gguf(path: Path, folder: Path, **ends: str) -> None:
    """The model of `folder` as a GGUF file with these end tokens, by their names there: eos, eot, eom."""
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in pipeline["added_tokens"]}
    vocabulary = pipeline["model"]["vocab"] | special
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    metadata: list[tuple[Any, ...]] = [
        ("add_rope_freq_base", 10000.0), ("add_tokenizer_model", "gpt2"), ("add_tokenizer_pre", "gpt-2"),
        ("add_token_list", tokens), ("add_token_types", kinds),
        ("add_token_merges", [" ".join(merge) for merge in pipeline["model"]["merges"]]),
        *((f"add_{name}_token_id", special[token]) for name, token in ends.items()),
    ]  # fmt: skip
    write_gguf(path, AutoModelForCausalLM.from_pretrained(folder), metadata=metadata)


def end_token_ids(folder: Path) -> dict[str, int]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in (EOS, OTHER)}


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
