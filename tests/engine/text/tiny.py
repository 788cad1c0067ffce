"""Tiny tokenizers of the two kinds we know byte rules for, one of a third kind, and GGUF headers to read them from."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.text import tokenizer as engine_tokenizer
from engine.text.saved_tokenizer import SavedTokenizer
from engine.text.token_bytes import byte_alphabet

SPECIAL = ("<s>", "</s>", "<|im_end|>")
WORDS = ("Dae", "ner", "ys", "▁is", "▁the", "▁queen", "▁a", "▁", "日", "é")


def wrap(pipeline: Tokenizer, **saved: Any) -> engine_tokenizer.Tokenizer:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    defaults = {"special_tokens": special, "eos_token_ids": (1,), "chat_templates": {}}
    return engine_tokenizer.Tokenizer(SavedTokenizer(pipeline, **{**defaults, **saved}))


def byte_level() -> Tokenizer:
    """Ids: three special tokens, the 256 bytes in the alphabet's order, then a few merged ones and an added word."""
    spelled = {byte: character for character, byte in byte_alphabet().items()}

    def spell(text: str) -> list[str]:
        return [spelled[byte] for byte in text.encode()]

    vocab = {token: token_id for token_id, token in enumerate([*SPECIAL, *spelled.values()])}
    merges = []
    for text in (" Hot", " done", "🌶", "日本", "stop"):
        left, *rest = spell(text)
        for right in rest:
            merges.append((left, right))
            left += right
            vocab.setdefault(left, len(vocab))
    pipeline = Tokenizer(models.BPE(vocab, list(dict.fromkeys(merges))))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    pipeline.add_tokens([AddedToken("<tool▁call>", normalized=False)])
    return pipeline


def sentencepiece(*, strips_space: bool = True) -> Tokenizer:
    """Llama's kind: "▁" for spaces, byte tokens, one leading space stripped from a decoded text."""
    vocab = {token: token_id for token_id, token in enumerate(sentencepiece_tokens())}
    pipeline = Tokenizer(models.BPE(vocab, [], byte_fallback=True, fuse_unk=True))
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    pipeline.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strips_space else [])])
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return pipeline


def sentencepiece_tokens() -> list[str]:
    return [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *"abcdefghij:TAns"]


def metaspace() -> Tokenizer:
    """A kind without a byte rule: the Metaspace decoder, which drops the space of whatever token comes first."""
    vocab = {token: token_id for token_id, token in enumerate([*SPECIAL, *WORDS])}
    pipeline = Tokenizer(models.BPE(vocab, []))
    pipeline.normalizer = normalizers.NFC()
    pipeline.decoder = decoders.Metaspace()
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return pipeline


def write_gguf(path: Path, fields: Mapping[str, Any]) -> Path:
    """A GGUF file without tensors, with `fields` in its header."""
    body = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields))
    for key, value in fields.items():
        body += _gguf_string(key) + _gguf_value(value)
    path.write_bytes(body)
    return path


def _gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf_value(value: Any) -> bytes:
    if isinstance(value, Sequence) and not isinstance(value, str):
        kinds = {str: 8, float: 6, int: 5}
        elements = [_gguf_value(element) for element in value]
        return struct.pack("<IIQ", 9, kinds[type(value[0])], len(value)) + b"".join(e[4:] for e in elements)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + _gguf_string(value)
