"""The tokenizer of a Hugging Face folder, as transformers builds it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.text.saved_tokenizer import SavedTokenizer

_SOURCES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.*",
    "additional_chat_templates/*", "vocab.*", "merges.txt", "*.model", "*.tiktoken", "tokenization_*.py",
)
_MODEL_KEYS = ("model_type", "tokenizer_class", "auto_map", "transformers_version")   # of config.json


def read_folder_tokenizer(folder: Path, *, trust_remote_code: bool) -> SavedTokenizer:
    """Read with AutoTokenizer, so that the ids are transformers' own. Imports transformers, and with it torch."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:                     # whatever transformers raises, the cause is in the folder
        raise ConfigError(f"model: {folder} has no tokenizer that can be read: {error}") from error
    pipeline = getattr(tokenizer, "backend_tokenizer", None)
    if pipeline is None:
        raise ConfigError(f"model: {folder} has no fast tokenizer (tokenizer.json)")
    pipeline.no_truncation()
    pipeline.no_padding()
    templates = tokenizer.chat_template or {}
    return SavedTokenizer(
        pipeline,
        special_tokens={name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)},
        eos_token_ids=() if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,),
        chat_templates={"default": templates} if isinstance(templates, str) else templates,
        token_types="token_type_ids" in tokenizer.model_input_names,
    )


def folder_digest(folder: Path) -> bytes:
    """A hash over all that a tokenizer is read from: its files, and what the model's configuration says of it."""
    digest = hashlib.blake2b()
    for path in sorted({path for pattern in _SOURCES for path in folder.glob(pattern) if path.is_file()}):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    digest.update(repr([_model_config(folder).get(key) for key in _MODEL_KEYS]).encode())
    return digest.digest()


def _model_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):                  # whoever loads the model will say so
        return {}
    return config if isinstance(config, dict) else {}
