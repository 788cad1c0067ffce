"""GrammarSpec: what a request's output has to look like; a value that travels with the request."""

from dataclasses import dataclass, field
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar over the whole text of an output, as its source.

    json_schema   a JSON schema as JSON text; properties come in its order
    regex         Rust's `regex` syntax, of the whole text, with or without ^ and $
    lark          llguidance's variety of Lark; `%json {…}` embeds a schema
    """

    kind: GrammarKind
    text: str
    param: str | None = field(default=None, compare=False)   # the API's field that asked for it, for refusals
    names_tokens: bool = False               # Lark may name tokens by id, `<[123]>`: special tokens are never text
