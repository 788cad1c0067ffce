"""From a grammar's source to what a request can follow, by llguidance: Earley parsing over lazily derived lexers."""

import json
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np

from engine.sampling.grammar.checks import GrammarError
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.grammar.vocabulary import Vocabulary

# Between a document's tokens. Without a bound a model can go on with white space until max_tokens, and small ones do.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,40}"
_JSON_OPTIONS: Any = {"whitespace_flexible": True, "whitespace_pattern": _WHITE_SPACE, "lenient": False}
_MAX_MESSAGE_LENGTH = 300
# Measured: 220 kB for a schema of 700 bytes, and as much again after long use.
_BASE_BYTES, _BYTES_PER_BYTE = 2**16, 500


@dataclass(slots=True, eq=False, weakref_slot=True)
class Grammar:
    """A compiled grammar, shared by all requests that ask for it. What it derives for one serves all, and adds up."""

    vocabulary: Vocabulary
    prototype: llguidance.LLMatcher            # at the beginning of the text; copied, never moved
    nbytes: int                                # about
    is_spent: bool = False                     # what it derived has reached a limit: later requests need another

    def start(self) -> llguidance.LLMatcher:
        return self.prototype.deep_copy()


def compile_grammar(vocabulary: Vocabulary, spec: GrammarSpec) -> Grammar:
    """Raises GrammarError. Frees the interpreter's lock; recurses as deep as the grammar is chained."""
    try:
        source = _source(spec)
    except ValueError as error:
        raise GrammarError(_message(str(error))) from None
    prototype = llguidance.LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=_limits())
    first = prototype.deep_copy()
    words = np.zeros(vocabulary.end_id // 32 + 1, np.int32)
    if not first.is_error():
        first.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)     # does what is left of compiling
    if first.is_error():
        raise GrammarError(_message(first.get_error()))
    if not words.any():
        raise GrammarError("no text fits it")
    return Grammar(vocabulary, prototype, _BASE_BYTES + _BYTES_PER_BYTE * len(spec.text))


def _source(spec: GrammarSpec) -> str:
    if spec.kind == "json_schema":
        schema = json.loads(spec.text)
        if schema is not True and not isinstance(schema, dict):
            raise ValueError("a JSON schema is an object, or true")
        text = "{}" if schema is True else spec.text
        return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
    if spec.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(spec.text)
    return llguidance.LLMatcher.grammar_from_lark(spec.text)


def _limits() -> llguidance.LLParserLimits:
    """Work of a compile and of a mask, in llguidance's own units; a mask's is some 15 ms at most."""
    return llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def _message(error: str) -> str:
    """What the client is told: the first lines, which name the place."""
    text = " ".join(error.partition("<")[0].split()) or "llguidance refused it"
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:_MAX_MESSAGE_LENGTH]}…"
