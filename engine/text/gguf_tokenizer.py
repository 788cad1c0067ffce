"""The tokenizer that a GGUF file describes in its header, rebuilt as a `tokenizers` pipeline.

The header holds the vocabulary, the merges (or, for SentencePiece, scores they follow from) and the special ids. How
text is split before merging is only named, in `tokenizer.ggml.pre`: a name we do not know is refused, because a guess
would give other ids without any error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ConfigError
from engine.model.weights.gguf_file import GGUFFile
from engine.text.saved_tokenizer import SavedTokenizer

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

# transformers' name -> the header's, in tokenizer.ggml.<name>_token_id
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Splitting:
    """What a name in `tokenizer.ggml.pre` stands for in byte-level BPE."""

    regex: str | None = None                       # None: GPT-2's own
    single_digits: bool = False                    # every digit is a word
    unicode_nfc: bool = False                      # text is composed first
    whole_words_first: bool = False                # a word that is a token is not merged from pieces
    adds_bos: bool = False                         # where the header does not say


_LLAMA3 = _Splitting(_LLAMA3_SPLIT, whole_words_first=True, adds_bos=True)
_SPLITTINGS = {
    "gpt-2": _Splitting(),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Splitting(_QWEN2_SPLIT, unicode_nfc=True),
    "smollm": _Splitting(single_digits=True),
}


def read_gguf_tokenizer(path: Path) -> SavedTokenizer:
    """The tokenizer of the GGUF file at `path`. Raises ConfigError where the file names a kind we do not know."""
    header = _Header(GGUFFile(path).metadata, path)
    try:
        return _build(header)
    except ConfigError:
        raise
    except Exception as error:                     # `tokenizers` raises bare Exception
        raise ConfigError(f"model: the tokenizer in {path} contradicts itself: {error}") from error


def _build(header: "_Header") -> SavedTokenizer:
    kind = header.text("model")
    if kind == "gpt2":
        pipeline, adds_bos = _byte_level(header)
    elif kind == "llama":
        pipeline, adds_bos = _sentencepiece(header), True
    else:
        raise ConfigError(f"model: {header.path} has tokenizer.ggml.model '{kind}'; known: gpt2, llama")
    _add_special_tokens(pipeline, header)
    _add_template(pipeline, header, adds_bos)
    eos = [header.get(name) for name in ("eos_token_id", "eot_token_id", "eom_token_id")]
    return SavedTokenizer(
        pipeline,
        special_tokens={
            name: header.tokens[token_id]
            for name, key in _SPECIAL_TOKENS.items()
            if (token_id := header.get(f"{key}_token_id")) is not None
        },
        eos_token_ids=tuple(dict.fromkeys(token_id for token_id in eos if token_id is not None)),
        chat_templates=header.chat_templates(),
    )


class _Header:
    """The `tokenizer.*` keys of one file."""

    def __init__(self, metadata: Mapping[str, Any], path: Path) -> None:
        self._metadata = metadata
        self.path = path
        self.types: list[int] = self.get("token_type") or []
        self.tokens = self._without_padding(self.get("tokens") or [])
        if not self.tokens:
            raise ConfigError(f"model: {path} holds no tokenizer (tokenizer.ggml.tokens)")

    def get(self, name: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def text(self, name: str) -> str:
        return str(self.get(name))

    @property
    def is_gemma(self) -> bool:
        return str(self._metadata.get("general.architecture")).startswith("gemma")

    def chat_templates(self) -> dict[str, str]:
        """Name -> template; the nameless one is "default"."""
        prefix = "tokenizer.chat_template"
        return {
            key.removeprefix(prefix).removeprefix(".") or "default": value
            for key, value in self._metadata.items()
            if key.startswith(prefix) and isinstance(value, str)
        }

    def _without_padding(self, tokens: list[str]) -> list[str]:
        """Rows that only fill up the embedding, "[PAD151665]" and so on, are no tokens."""
        end = len(tokens)
        while end and self.types[end - 1:end] == [_UNUSED] and tokens[end - 1].startswith("[PAD"):
            end -= 1
        return tokens[:end]


def _byte_level(header: _Header) -> tuple[Tokenizer, bool]:
    """Byte-level BPE as GPT-2 introduced it, and whether it adds BOS by default."""
    splitting = _SPLITTINGS.get(header.text("pre"))
    if splitting is None:
        raise ConfigError(
            f"model: {header.path} needs the text splitting '{header.text('pre')}' (tokenizer.ggml.pre); "
            f"known: {', '.join(sorted(_SPLITTINGS))}. A Hugging Face folder of the same model would work"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in header.get("merges") or []]
    pipeline = Tokenizer(models.BPE(_vocabulary(header.tokens), merges, ignore_merges=splitting.whole_words_first))
    if splitting.unicode_nfc:
        pipeline.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.regex:
        steps.append(pre_tokenizers.Split(Regex(splitting.regex), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.regex is None))
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(steps)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline, splitting.adds_bos


def _sentencepiece(header: _Header) -> Tokenizer:
    """SentencePiece BPE with byte fallback, as transformers builds it for Llama and for Gemma."""
    if header.get("pre") not in (None, "default"):
        raise ConfigError(
            f"model: {header.path} names the text splitting '{header.text('pre')}' (tokenizer.ggml.pre), "
            "which SentencePiece does not have"
        )
    # Runs of spaces are stored as spaces, but are merged from "▁" like all other text.
    tokens = ["▁" * len(token) if token.strip(" ") == "" else token for token in header.tokens]
    # Gemma's scores do not follow its merge order; the order of its vocabulary does.
    scores = [-float(index) for index in range(len(tokens))] if header.is_gemma else header.get("scores")
    merges = [tuple(merge.split(" ", 1)) for merge in header.get("merges") or []] or _implied_merges(tokens, scores)
    unknown = header.get("unknown_token_id")
    pipeline = Tokenizer(models.BPE(
        _vocabulary(tokens), merges, unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True, byte_fallback=True,
    ))
    adds_space = header.get("add_space_prefix") is not False
    if header.is_gemma:
        pipeline.normalizer = normalizers.Replace(" ", "▁")
    else:
        scheme = "first" if adds_space else "never"
        pipeline.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(content=" ", left=1))
    pipeline.decoder = decoders.Sequence(steps)
    return pipeline


def _implied_merges(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best-scored token first: what SentencePiece does without a list."""
    ids = _vocabulary(tokens)
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        ranked.extend((-score, -len(left), -len(right), (left, right)) for left, right in known)
    ranked.sort(key=lambda entry: entry[:3])
    return [pair for *_, pair in ranked]


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _add_special_tokens(pipeline: Tokenizer, header: _Header) -> None:
    """Control tokens become special ones, user-defined ones stay whole in text but are ordinary output."""
    named = {header.get(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom", "padding", "unknown")}
    added = []
    for token_id, (token, kind) in enumerate(zip(header.tokens, header.types, strict=False)):
        special = kind in (_UNKNOWN, _CONTROL) or token_id in named
        if (special or kind == _USER_DEFINED) and pipeline.token_to_id(token) == token_id:
            added.append(AddedToken(token, normalized=False, special=special))
    pipeline.add_tokens(added)


def _add_template(pipeline: Tokenizer, header: _Header, adds_bos: bool) -> None:
    """BOS before, EOS after a text that is encoded with special tokens, as the header says."""
    if (flag := header.get("add_bos_token")) is not None:
        adds_bos = flag
    bos, eos = header.get("bos_token_id"), header.get("eos_token_id")
    before = [(header.tokens[bos], bos)] if adds_bos and bos is not None else []
    after = [(header.tokens[eos], eos)] if header.get("add_eos_token") and eos is not None else []
    if before or after:
        single = [*(f"{token}:0" for token, _ in before), "$A:0", *(f"{token}:0" for token, _ in after)]
        pipeline.post_processor = processors.TemplateProcessing(single=single, special_tokens=[*before, *after])
