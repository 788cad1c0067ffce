"""Small tokenizers of three families as transformers builds them, and GGUF headers that tell of the same ones."""

import json
from pathlib import Path
from random import Random

from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers, trainers
from transformers import GemmaTokenizer, LlamaTokenizer, PreTrainedTokenizerBase, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import generate_merges

from tests.engine.text import tiny

_RANDOM = Random(0)
TEXTS = [
    "Hello world! Café déjà vu — 123 😊", "  two  spaces\n\n\tTab", "don't WE'LL", "１２３ ½", "日本語のテキスト",
    "e\u0301", "<|im_start|>user", "<start_of_turn>user\n", "a\u200db", "", " ", "\r\n\r\n x", "x" * 300, "▁a ▁▁b",
    "<0x41>", "<bos>hi",
    "".join(chr(code) for _ in range(3000) if not 0xD800 <= (code := _RANDOM.randrange(0x110000)) < 0xE000),
    "".join(chr(_RANDOM.randrange(1, 0x3000)) for _ in range(3000)),
    "".join(_RANDOM.choice("aB 1'\n\t.é\u0301") for _ in range(3000)),
]  # fmt: skip
CORPUS = [*TEXTS[:12], "the other theme, then the others; they don't, we'll 1234 déjà vu" * 3, "    deep\n      more"]
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6           # tokenizer.ggml.token_type


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer | None, alphabet: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges of a small BPE."""
    pipeline = Pipeline(models.BPE())
    if pre_tokenizer is not None:
        pipeline.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    pipeline.train_from_iterator(CORPUS, trainer)
    model = json.loads(pipeline.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


def original_qwen2(tokens: list[str], merges: list[str], special: list[str]) -> PreTrainedTokenizerBase:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    original = Qwen2Tokenizer(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges])
    original.add_special_tokens({"additional_special_tokens": special})
    return original


def qwen2(path: Path) -> PreTrainedTokenizerBase:
    splitting = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    tokens, merges = trained(splitting, pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tiny.write_gguf(path, {
        "general.architecture": "qwen2", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens + special, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [CONTROL] * 3, "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eos_token_id": len(tokens) + 2, "tokenizer.chat_template": CHATML,
    })  # fmt: skip
    return original_qwen2(tokens + special, merges, special)


def sentencepiece() -> tuple[list[str], list[tuple[str, str]], dict[str, object]]:
    """Tokens, merges in their order, and the header that says of them what a converter writes."""
    table = [f"<0x{byte:02X}>" for byte in range(256)]
    words, _ = trained(pre_tokenizers.Metaspace(split=False), ["▁", *"abcdefghijklmnopqrstuvwxyz"])
    tokens = ["<unk>", "<bos>", "<eos>", *table, *words]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words))]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    learned = dict(zip(tokens[259:], scores[259:], strict=True))
    merges = generate_merges(vocabulary, learned)
    return tokens, merges, {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words),
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }  # fmt: skip


def gemma(path: Path) -> PreTrainedTokenizerBase:
    """Its scores say nothing, the order of its vocabulary does; it stores runs of spaces as spaces."""
    tokens, merges, fields = sentencepiece()
    stored = [" " * len(token) if set(token) == {"▁"} else token for token in tokens]
    tiny.write_gguf(path, fields | {
        "general.architecture": "gemma3", "tokenizer.ggml.tokens": stored,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens), "tokenizer.ggml.add_space_prefix": False,
    })  # fmt: skip
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    return GemmaTokenizer(vocab=vocabulary, merges=merges, pad_token="<eos>", mask_token="<unk>", add_bos_token=True)


def llama(path: Path) -> PreTrainedTokenizerBase:
    tokens, merges, fields = sentencepiece()
    tiny.write_gguf(path, fields | {"general.architecture": "llama"})
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    return LlamaTokenizer(
        vocab=vocabulary, merges=merges, bos_token="<bos>", eos_token="<eos>", add_bos_token=True
    )


ORIGINALS = {"qwen2": qwen2, "gemma": gemma, "llama": llama}
