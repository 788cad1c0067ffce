"""The bytes of single tokens, for the tokenizers whose decoding is a plain concatenation of bytes.

Two rules cover the families we serve: byte-level BPE (the GPT-2 alphabet: one printable character per byte) and
SentencePiece BPE ("▁" for a space, <0xNN> for a byte outside the vocabulary). Everything else has no rule, and is
decoded by windows of tokens instead.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How a token's spelling turns into bytes, and bytes into text."""

    kind: Literal["byte_level", "sentencepiece"]
    strips_first_space: bool = False               # of a whole decoded text

    @property
    def decode_errors(self) -> str:
        """The codec error handler: invalid UTF-8 counts per maximal sequence in byte-level BPE, else per byte."""
        return "replace" if self.kind == "byte_level" else "surrogateescape"


class WholeTexts(dict[int, str | None]):
    """Token id -> text, of tokens whose bytes are whole characters; None: of special tokens, and of all others.

    Such a token adds its text whatever stands before it, unless a character is incomplete there. The table is filled
    as far as asked for.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], special_token_ids: frozenset[int]) -> None:
        super().__init__()
        self._token_bytes, self._special_token_ids = token_bytes, special_token_ids

    def __missing__(self, token_id: int) -> str | None:
        text = None
        if token_id not in self._special_token_ids:
            with suppress(UnicodeDecodeError):
                text = self._token_bytes(token_id).decode()
        self[token_id] = text
        return text


def find_byte_rule(pipeline: Tokenizer) -> ByteRule | None:
    """The rule that the decoder of `pipeline` follows, or None for a decoder of another shape."""
    if pipeline.decoder is None:
        return None
    decoder = json.loads(pipeline.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return ByteRule("byte_level")
    replace = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    if steps[:3] != [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]:
        return None
    if not steps[3:]:
        return ByteRule("sentencepiece")
    if steps[3:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
        return ByteRule("sentencepiece", strips_first_space=True)
    return None


def spelled_bytes(rule: ByteRule, spelling: str, alphabet: Mapping[str, int]) -> bytes:
    """The bytes of the token spelled `spelling`; `alphabet` is `byte_alphabet()`."""
    if rule.kind == "sentencepiece":
        byte = _fallback_byte(spelling)
        return spelling.replace(_SPACE, " ").encode() if byte is None else bytes([byte])
    try:
        return bytes([alphabet[character] for character in spelling])
    except KeyError:                               # an added token, spelled as plain text
        return spelling.encode()


def _fallback_byte(spelling: str) -> int | None:
    if len(spelling) != 6 or not spelling.startswith("<0x") or not spelling.endswith(">"):
        return None
    try:
        return int(spelling[3:5], 16)
    except ValueError:
        return None


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of the GPT-2 alphabet: printable bytes stand for themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}

