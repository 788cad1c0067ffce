"""What we keep of a model's tokenizer once its own format is read: cheap to store, quick to load without torch."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.config import cache_directory
from engine.heap import give_back_freed_memory

_FORMAT = 2                                        # raise when the same source would now be converted differently
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedTokenizer:
    """A `tokenizers` pipeline and what the model's own files say beside it."""

    pipeline: Tokenizer
    special_tokens: Mapping[str, str]              # bos_token, eos_token, … as chat templates name them
    eos_token_ids: tuple[int, ...]                 # the tokenizer's own
    chat_templates: Mapping[str, str]              # name -> Jinja source; "default" is the one for plain chats
    token_types: bool = False                      # whether its model is told which of two texts a token belongs to

    def save(self, folder: Path) -> None:
        self.pipeline.save(str(folder / "tokenizer.json"), pretty=False)
        rest = {
            "special_tokens": dict(self.special_tokens),
            "eos_token_ids": self.eos_token_ids,
            "chat_templates": dict(self.chat_templates),
            "token_types": self.token_types,
        }
        (folder / "conveyor.json").write_text(json.dumps(rest))

    @classmethod
    def load(cls, folder: Path) -> "SavedTokenizer":
        rest: dict[str, Any] = json.loads((folder / "conveyor.json").read_text())
        pipeline = Tokenizer.from_file(str(folder / "tokenizer.json"))
        give_back_freed_memory()                       # reading a large vocabulary leaves 100 MB of it
        return cls(
            pipeline, rest["special_tokens"], tuple(rest["eos_token_ids"]), rest["chat_templates"], rest["token_types"]
        )


def converted_once(source_digest: bytes, convert: Callable[[], SavedTokenizer]) -> SavedTokenizer:
    """The result of `convert`, from the cache directory if it was converted there before.

    The key is the content of the source, so copies share an entry. Entries appear by renaming a finished folder:
    processes that convert at the same time do the work twice, and neither sees half an entry.
    """
    versions = f"{_FORMAT} {version('tokenizers')} {version('transformers')}".encode()
    key = hashlib.blake2b(versions + source_digest, digest_size=16).hexdigest()
    entry = cache_directory() / "tokenizers" / key
    if entry.is_dir():
        return SavedTokenizer.load(entry)
    converted = convert()
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix="new-", ignore_cleanup_errors=True) as scratch:
            converted.save(Path(scratch))
            os.rename(scratch, entry)
    except OSError as error:
        if not entry.is_dir():
            _log.warning("the converted tokenizer could not be kept in %s: %s", entry.parent, error)
    return converted
