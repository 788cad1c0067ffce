"""Tokenizers of the kinds that grammars meet, and grammars over them."""

from typing import Any

from engine.config import GrammarConfig
from engine.sampling.grammar.cache import Grammars
from engine.sampling.grammar.compiler import Grammar, compile_grammar
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.grammar.state import GrammarState
from engine.sampling.grammar.vocabulary import Vocabulary
from engine.text.tokenizer import Tokenizer
from tests.engine.text import tiny

BYTE_LEVEL = tiny.wrap(tiny.byte_level())
SENTENCEPIECE = tiny.wrap(tiny.sentencepiece())


def grammars(tokenizer: Tokenizer = BYTE_LEVEL, **config: Any) -> Grammars:
    return Grammars(tokenizer, **GrammarConfig(**config).model_dump())


def compiled(kind: str, text: str, tokenizer: Tokenizer = BYTE_LEVEL, **fields: Any) -> Grammar:
    return compile_grammar(Vocabulary(tokenizer), GrammarSpec(kind, text, **fields))  # type: ignore[arg-type]


def allowed_ids(state: GrammarState) -> list[int]:
    return [32 * w + bit for w, word in enumerate(state.allowed.tolist()) for bit in range(32) if word >> bit & 1]


def allowed_texts(state: GrammarState, tokenizer: Tokenizer = BYTE_LEVEL) -> set[bytes]:
    return {tokenizer.token_bytes(token_id) for token_id in allowed_ids(state)}


def follow(state: GrammarState, text: str, tokenizer: Tokenizer = BYTE_LEVEL) -> bool:
    """Append the tokens of `text`, byte by byte; whether all were allowed."""
    by_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size)) if i not in {0, 1, 2}}
    for byte in text.encode():
        token_id = by_byte[bytes([byte])]
        if token_id not in allowed_ids(state):
            return False
        state.append(token_id)
    return True


def without_rule() -> Tokenizer:
    tokenizer = tiny.wrap(tiny.metaspace())
    assert tokenizer.byte_rule is None
    return tokenizer


