"""What a grammar may hold before llguidance sees it: it bounds its own work, but not in every respect."""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from engine.sampling.grammar.spec import GrammarSpec

_MAX_MULTIPLE = 20_000                       # an automaton has as many states; 20,000 take about half a second
_JSON_BLOCK = re.compile(r"%json\s*")


class GrammarError(Exception):
    """A grammar that is refused; the text says why, to the client."""


def check(spec: GrammarSpec, *, max_bytes: int, max_depth: int) -> None:
    """Raises GrammarError."""
    try:
        num_bytes = len(spec.text.encode())
    except UnicodeEncodeError as error:
        raise GrammarError(f"the text is not valid Unicode: {error.reason} at {error.start}") from None
    if num_bytes > max_bytes:
        raise GrammarError(f"{num_bytes} bytes long; at most {max_bytes} are compiled")
    if spec.kind == "lark" and not spec.names_tokens and "<[" in spec.text:
        raise GrammarError("'<[' names tokens by their ids, which is not allowed; in a string write '\\u003c['")
    multiples = [
        value
        for schema in _schemas(spec)
        for key, value in _members(schema, max_depth)
        if key == "multipleOf" and isinstance(value, int | float)
    ]
    if math.lcm(*map(_numerator, multiples)) > _MAX_MULTIPLE:
        raise GrammarError(f"multipleOf: the values' least common multiple, without decimals, is over {_MAX_MULTIPLE}")


def _schemas(spec: GrammarSpec) -> Iterator[Any]:
    """The JSON schemas in the text. What is none is left to llguidance to refuse."""
    try:
        if spec.kind == "json_schema":
            yield json.loads(spec.text)
        elif spec.kind == "lark":
            for block in _JSON_BLOCK.finditer(spec.text):
                yield json.JSONDecoder().raw_decode(spec.text, block.end())[0]
    except RecursionError:
        raise GrammarError("nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"not valid JSON: {error}") from None


def _members(value: Any, max_depth: int) -> Iterator[tuple[str, Any]]:
    """Key and value of every member of every object in `value`. Raises GrammarError for what is nested deeper."""
    waiting = [(1, value)]
    while waiting:
        depth, value = waiting.pop()
        if not isinstance(value, dict | list):
            continue
        if depth > max_depth:
            raise GrammarError(f"nested deeper than {max_depth} levels")
        if isinstance(value, dict):
            yield from value.items()
        waiting += [(depth + 1, member) for member in (value.values() if isinstance(value, dict) else value)]


def _numerator(value: float) -> int:
    """Without its decimals, as an automaton counts them: 0.25 is 25 hundredths."""
    number = Decimal(str(value)) if not isinstance(value, bool) else Decimal(0)
    if not number.is_finite() or not number:
        raise GrammarError(f"multipleOf: {value} is not a number above 0")
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    numerator: int = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return numerator
