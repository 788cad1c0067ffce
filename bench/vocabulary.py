"""The token ids that random prompts are drawn from: a model's ordinary tokens, no special, unused or padding ids."""

from pathlib import Path

from engine.api import load_tokenizer, resolve_model


def load_vocabulary(model: str) -> list[int]:
    """Ordinary token ids, ascending, of whatever `model` may name in the YAML."""
    return vocabulary_of(resolve_model(model).path)


def vocabulary_of(path: Path) -> list[int]:
    """Ordinary token ids of a model folder or a .gguf file: those that contribute to a text."""
    tokenizer = load_tokenizer(path)
    ids = range(tokenizer.vocab_size)
    return [id_ for id_ in ids if id_ not in tokenizer.special_token_ids and tokenizer.token_bytes(id_)]
