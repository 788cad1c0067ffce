"""Structured output over real HTTP, on a model of random weights: whatever it says, it says in the form asked for."""

import json
import time
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from tests.integration.conftest import Application
from tests.integration.sse import stream

pytestmark = pytest.mark.integration

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROSE = [{"role": "user", "content": "Say hello in English prose."}]
NO_WHITE_SPACE = {str(ord(character)): -100 for character in " \n\r\t"}    # as a trained model has it
COUNT = {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False,
}  # fmt: skip


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


def chat(application: Application, **fields: Any) -> dict[str, Any]:
    body = {"messages": PROSE, "max_tokens": 60, "temperature": 1, "seed": 0, "logit_bias": NO_WHITE_SPACE} | fields
    response = application.post(CHAT, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("response_format", "schema"),
    [({"type": "text"}, None), ({"type": "json_object"}, {"type": "object"}), (form(COUNT), COUNT)],
    ids=["text", "object", "schema"],
)
def test_va_07_what_is_accepted_is_enforced(rand: Application, response_format: Any, schema: Any, seed: int) -> None:
    more_ends = NO_WHITE_SPACE | {str(ord("}")): 6}
    (choice,) = chat(rand, response_format=response_format, seed=seed, logit_bias=more_ends)["choices"]
    if schema is not None and choice["finish_reason"] == "stop":
        Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
    if schema is COUNT:
        assert choice["message"]["content"].startswith('{"n":')


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"response_format": {"type": "nope"}}, "response_format.type"),
        (CHAT, {"response_format": form({"type": "string", "pattern": "(["})}, "response_format.json_schema.schema"),
        (COMPLETIONS, {"suffix": "end"}, "suffix"),
        (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
        (CHAT, {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        (COMPLETIONS, {"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex"),
        (COMPLETIONS, {"structured_outputs": {"grammar": "start: b"}, "stream": True}, "structured_outputs.grammar"),
        (CHAT, {"guided_json": {"type": "array", "uniqueItems": True}, "n": 3}, "guided_json"),
    ],
)
def test_va_07_what_cannot_be_enforced_is_refused(rand: Application, path: str, body: Any, param: str) -> None:
    prompt = {"messages": PROSE} if path == CHAT else {"prompt": "x"}
    response = rand.post(path, prompt | {"max_tokens": 60, "temperature": 0} | body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"
    rand.assert_alive()


HOSTILE = {
    "long": {"enum": [f"value {i}" for i in range(20_000)]},
    "deep": json.loads('{"items":' * 90 + "{}" + "}" * 90),
    "chained": {"$ref": "#/d0", **{f"d{i}": {"properties": {"a": {"$ref": f"#/d{i + 1}"}}} for i in range(5000)}},
    "multiples": {"type": "integer", "multipleOf": 1_000_003},
    "products": {"allOf": [{"anyOf": [{"required": [f"{side}{i}"]} for side in "ab"]} for i in range(24)]},
    "endless": {"$ref": "#"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_in_time(rand: Application, name: str) -> None:
    structure = {"json": json.dumps(HOSTILE[name])}            # as text: a body that deep is refused as such
    begun_s = time.monotonic()
    response = rand.post(CHAT, {"messages": PROSE, "max_tokens": 9, "structured_outputs": structure})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "structured_outputs.json"
    assert time.monotonic() - begun_s < 20                     # the limit is 5 s; the machine may be busy
    rand.assert_alive()


@pytest.mark.parametrize(
    ("structure", "fits"),
    [
        ({"choice": ["red", "green", "blue"]}, lambda text: text in ("red", "green", "blue")),
        ({"regex": "[0-9]{3}-[a-f]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"grammar": 'start: "<" /[a-z]{3}/ ">"'}, lambda text: text[0] + text[-1] == "<>" and len(text) == 5),
    ],
    ids=["choice", "regex", "grammar"],
)
def test_completions_take_every_structure_for_every_choice(rand: Application, structure: Any, fits: Any) -> None:
    body = {"prompt": ["x", "y"], "n": 3, "max_tokens": 20, "temperature": 1, "structured_outputs": structure}
    choices = rand.complete(body)["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * 6
    assert [choice["text"] for choice in choices if not fits(choice["text"])] == []


def test_a_stream_says_what_the_whole_answer_says(rand: Application) -> None:
    schema = {"type": "array", "items": {"enum": ["é🌶", "日本", 7]}, "minItems": 2, "maxItems": 4}
    body = {"messages": PROSE, "max_tokens": 90, "temperature": 1, "seed": 5, "n": 2, "logit_bias": NO_WHITE_SPACE}
    body |= {"response_format": form(schema)}
    whole = chat(rand, **body)["choices"]
    streamed = stream(rand, CHAT, body)
    for choice in whole:
        content = choice["message"]["content"]
        assert streamed.text(choice["index"]) == content
        assert streamed.finish_reasons(choice["index"]) == [choice["finish_reason"]] == ["stop"]
        Draft202012Validator(schema).validate(json.loads(content))


async def test_the_openai_client_parses_into_a_model(rand: Application) -> None:
    class Person(BaseModel):
        model_config = ConfigDict(extra="forbid")

        name: str = Field(pattern="^[A-Z][a-z]{1,8}$")
        is_tall: bool
        age: int = Field(ge=0, le=150)

    async with openai.AsyncOpenAI(base_url=f"{rand.url}/v1", api_key="none", max_retries=0) as api:
        answer = await api.chat.completions.parse(
            model="rand", messages=PROSE, response_format=Person, max_tokens=100, temperature=1, seed=3,
            logit_bias=NO_WHITE_SPACE,
        )  # fmt: skip
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person) and 0 <= person.age <= 150
