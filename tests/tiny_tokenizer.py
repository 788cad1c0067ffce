"""A byte-level tokenizer small enough to write per test: every byte is a token, and so is whatever a test asks for."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

EOS = "<|im_end|>"
# Ends with the last message's own text, so that a scripted model can be led by what the user says.
CHAT_TEMPLATE = (
    "{% if tools %}call these with <tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'wizard' %}{{ raise_exception('no wizards') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% endfor %}"
)


def tiny_tokenizer(
    pieces: Sequence[bytes] = (), *, chat_template: str | None = CHAT_TEMPLATE, special: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Token ids [0, 256) are bytes; then come `pieces` and what their merges pass through; the last are special."""
    byte_characters = _byte_characters()
    vocabulary = {character: byte for byte, character in byte_characters.items()}
    merges: list[tuple[str, str]] = []
    for piece in pieces:
        left = byte_characters[piece[0]]
        for byte in piece[1:]:
            right = byte_characters[byte]
            if (left, right) not in merges:
                merges.append((left, right))
            left += right
            vocabulary.setdefault(left, len(vocabulary))
    pipeline = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens([AddedToken(token, special=True) for token in (EOS, "<|im_start|>", *special)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pipeline, eos_token=EOS, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = chat_template
    return tokenizer


def write_tiny_tokenizer(
    folder: Path,
    pieces: Sequence[bytes] = (),
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    special: Sequence[str] = (),
) -> None:
    tiny_tokenizer(pieces, chat_template=chat_template, special=special).save_pretrained(folder)


def _byte_characters() -> dict[int, str]:
    """byte -> the character that stands for it in a byte-level vocabulary"""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    assert set(characters.values()) == set(ByteLevel.alphabet())
    return characters
