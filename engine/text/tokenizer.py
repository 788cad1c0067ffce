"""The tokenizer of one model: text to token ids and back, and the exact bytes of each token. Never imports torch."""

import hashlib
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from engine.errors import ConfigError, InvalidRequest
from engine.model.shapes import SHAPES, shape_name
from engine.text.byte_tokenizer import byte_tokenizer
from engine.text.chat_template import ChatTemplate, check_chat_template
from engine.text.folder_tokenizer import folder_digest, read_folder_tokenizer
from engine.text.saved_tokenizer import SavedTokenizer, converted_once
from engine.text.token_bytes import WholeTexts, byte_alphabet, find_byte_rule, spelled_bytes

_GGUF_HEADER_BYTES = 16 * 2**20                    # more than any header: the vocabulary is most of it


class Tokenizer:
    """A `tokenizers` pipeline with the facts about it that serving needs. Safe to use from several threads."""

    def __init__(self, saved: SavedTokenizer) -> None:
        self._pipeline, self._token_types = saved.pipeline, saved.token_types
        self.byte_rule = find_byte_rule(saved.pipeline)
        self.special_token_ids = frozenset(
            token_id for token_id, token in saved.pipeline.get_added_tokens_decoder().items() if token.special
        )
        self.special_tokens = dict(saved.special_tokens)
        self.bos_token_id = self._special_id("bos_token")
        self.pad_token_id = self._special_id("pad_token")
        self.eos_token_ids = frozenset(saved.eos_token_ids)    # the model's configuration may name more
        self.chat_template = ChatTemplate(saved.chat_templates, saved.special_tokens) if saved.chat_templates else None
        self._alphabet = byte_alphabet()
        self._bytes: dict[int, bytes] = {}         # token id -> bytes, as far as asked for
        self.whole_texts = WholeTexts(self.token_bytes, self.special_token_ids)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id; a model's embedding may have more rows, never sampled."""
        return max(self._pipeline.get_vocab(with_added_tokens=True).values()) + 1

    def use_chat_template(self, source: str) -> None:
        """Takes the place of the model's own. Raises ConfigError if it is no template."""
        check_chat_template(source)
        self.chat_template = ChatTemplate({"default": source}, self.special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens spelled out in it are recognised, and BOS is never doubled.

        Raises InvalidRequest for text that is not Unicode (a lone surrogate).
        """
        _check_unicode(text)
        (encoding,) = self._pipeline.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids = encoding.ids
        if add_special_tokens and self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2:
            del ids[0]
        return ids

    def encode_whole(
        self, text: str, second: str | None = None, *, max_length: int | None = None, add_special_tokens: bool = True
    ) -> tuple[list[int], list[int]]:
        """Token ids of a text, or of a pair of texts, as an encoder takes them, and the token types that go with them.

        Beyond `max_length` ends are cut off, special tokens are not; of a pair the longer text gives first, as
        "longest_first" of transformers has it. Raises InvalidRequest for text that is not Unicode, and for a
        `max_length` that has no room for the special tokens.
        """
        texts = [text] if second is None else [text, second]
        for one in texts:
            _check_unicode(one)
        parts = self._pipeline.encode_batch(texts, add_special_tokens=False)
        if max_length is not None:
            added = self._pipeline.num_special_tokens_to_add(second is not None) if add_special_tokens else 0
            if max_length < added:
                raise InvalidRequest(
                    f"{max_length} tokens have no room for {added} special ones", param="truncate_prompt_tokens"
                )
            lengths = _longest_first([len(part.ids) for part in parts], max_length - added)
            for part, length in zip(parts, lengths, strict=True):
                part.truncate(length)
        pair = parts[1] if second is not None else None
        whole = self._pipeline.post_process(parts[0], pair, add_special_tokens=add_special_tokens)
        return whole.ids, whole.type_ids if self._token_types else [0] * len(whole.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence; ids that are no tokens give nothing."""
        return self._pipeline.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token contributes to a text: its exact bytes, which need not be whole characters."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._token_bytes(token_id)
        return known

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token that is spelled `text`."""
        token_id = self._pipeline.token_to_id(text)
        return token_id if token_id in self.special_token_ids else None

    def _token_bytes(self, token_id: int) -> bytes:
        spelling = self._pipeline.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if spelling is None:
            return b""
        if self.byte_rule is None:
            return self._pipeline.decode([token_id], skip_special_tokens=False).encode()
        return spelled_bytes(self.byte_rule, spelling, self._alphabet)

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._pipeline.token_to_id(text)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text is not valid Unicode: {error.reason} at {error.start}") from None


def _longest_first(lengths: list[int], room: int) -> list[int]:
    """Lengths of one or two texts that together fit into `room`; of two the longer one gives until they are even."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    kept = [short, room - short] if 2 * short <= room else [room // 2, room - room // 2]
    return kept if lengths[0] <= lengths[1] else kept[::-1]


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or a .gguf file; after the first time, from a converted copy.

    For `random:<shape>`, a stand-in that covers the vocabulary. Raises ConfigError if there is none, or none that
    would surely give the original's ids.
    """
    shape = shape_name(str(path))
    if shape is not None and shape in SHAPES:
        return Tokenizer(byte_tokenizer(SHAPES[shape]["vocab_size"]))
    path = Path(path)
    if path.is_dir():
        read_folder = partial(read_folder_tokenizer, path, trust_remote_code=trust_remote_code)
        return Tokenizer(converted_once(folder_digest(path), read_folder))
    if path.is_file():
        from engine.text.gguf_tokenizer import read_gguf_tokenizer  # needs a package that folders do without

        return Tokenizer(converted_once(_gguf_digest(path), partial(read_gguf_tokenizer, path)))
    raise ConfigError(f"model: {path} does not exist")


def _gguf_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        header = file.read(_GGUF_HEADER_BYTES)
    return hashlib.blake2b(f"{path.stat().st_size} ".encode() + header).digest()
