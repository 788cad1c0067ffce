"""Structured output: `response_format` of the OpenAI reference, `structured_outputs` of vLLM, and vLLM's older names.

A schema is enforced whether `strict` is set or not, as in vLLM. `grammar` is llguidance's variety of Lark.
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.api import GrammarSpec
from serve_app.errors import bad_request
from serve_app.schemas.base import RequestBody

_ANY_OBJECT = '{"type": "object"}'
_SPECIAL_IN_REGEX = re.compile(r"([\\.+*?()|\[\]{}^$#&\-~/])")

Text = Annotated[str, Field(min_length=1)]
Schema = dict[str, Any] | bool                          # what is a JSON schema, as JSON


class JsonSchemaFormat(RequestBody):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    json_schema: Schema = Field(alias="schema")
    strict: bool = False


class ResponseFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            needed = "needs" if self.json_schema is None else "has no"
            raise ValueError(f"type '{self.type}' {needed} json_schema")
        return self


class StructuredOutputs(RequestBody):
    """Exactly one of these."""

    json_schema: Schema | Text | None = Field(None, alias="json", description="a JSON schema, or its text")
    regex: Text | None = Field(None, description="of the whole output; no look-around, no back references")
    choice: list[Text] | None = Field(None, min_length=1, description="the output is one of these")
    grammar: Text | None = Field(None, description="in llguidance's variety of Lark; begins at `start`")
    json_object: Literal[True] | None = Field(None, description="any JSON object")

    @model_validator(mode="after")
    def _check_number(self) -> "StructuredOutputs":
        if len(self.model_fields_set) != 1:
            raise ValueError("takes exactly one of json, regex, choice, grammar, json_object")
        return self

    def grammar_spec(self, path: str) -> GrammarSpec:
        """`path` leads to these fields: `structured_outputs.`, or `guided_` of the older names."""
        if self.json_schema is not None:
            return _json(self.json_schema, f"{path}json")
        if self.regex is not None:
            return GrammarSpec("regex", self.regex, f"{path}regex")
        if self.choice is not None:
            return GrammarSpec("regex", "|".join(map(_literally, self.choice)), f"{path}choice")
        if self.grammar is not None:
            return GrammarSpec("lark", self.grammar, f"{path}grammar")
        return GrammarSpec("json_schema", _ANY_OBJECT, f"{path}json_object")


class StructuredFields(RequestBody):
    response_format: ResponseFormat | None = Field(
        None, description="text, json_object or json_schema; a schema is enforced, strict or not"
    )
    structured_outputs: StructuredOutputs | None = Field(None, description="what the whole output has to look like")
    guided_json: Schema | Text | None = Field(None, description="an older name of structured_outputs.json")
    guided_regex: Text | None = Field(None, description="an older name of structured_outputs.regex")
    guided_choice: list[Text] | None = Field(
        None, min_length=1, description="an older name of structured_outputs.choice"
    )
    guided_grammar: Text | None = Field(None, description="an older name of structured_outputs.grammar")

    @model_validator(mode="after")
    def _check_one_structure(self) -> "StructuredFields":
        asked = [name for name, _ in self._grammars()]
        if len(asked) > 1:
            raise bad_request(f"{asked[0]} and {asked[1]} cannot be asked for together", asked[1])
        return self

    @property
    def grammar(self) -> GrammarSpec | None:
        """What the output must look like, if the client says so."""
        return next((spec for _, spec in self._grammars()), None)

    def _grammars(self) -> list[tuple[str, GrammarSpec]]:
        """(field, its grammar) for each field that constrains the output."""
        grammars = []
        form = self.response_format
        if form is not None and form.type == "json_object":
            grammars.append(("response_format", GrammarSpec("json_schema", _ANY_OBJECT, "response_format")))
        elif form is not None and form.json_schema is not None:
            spec = _json(form.json_schema.json_schema, "response_format.json_schema.schema")
            grammars.append(("response_format", spec))
        if self.structured_outputs is not None:
            grammars.append(("structured_outputs", self.structured_outputs.grammar_spec("structured_outputs.")))
        for name in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{name}")
            if value is not None:
                older = StructuredOutputs.model_validate({name: value})
                grammars.append((f"guided_{name}", older.grammar_spec("guided_")))
        return grammars


def _json(schema: Schema | str, param: str) -> GrammarSpec:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return GrammarSpec("json_schema", text, param)


def _literally(text: str) -> str:
    return _SPECIAL_IN_REGEX.sub(r"\\\1", text)
