"""The description is made of the schemas, and every route is in it."""

from pathlib import Path

from serve_app.openapi import describe
from serve_app.operations import OPERATIONS
from serve_app.schemas.chat import ChatRequest
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import serving


def test_every_operation_is_described():
    paths = describe(OPERATIONS, "1.2.3")["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == {
        (operation.method, operation.path) for operation in OPERATIONS
    }


def test_bodies_are_described_by_the_schemas_that_judge_them():
    schemas = describe(OPERATIONS, "1.2.3")["components"]["schemas"]
    chat = schemas["ChatRequest"]
    assert chat["properties"].keys() == ChatRequest.model_fields.keys()
    assert chat["additionalProperties"] is False
    temperature = chat["properties"]["temperature"]
    assert {"default": 1.0, "maximum": 2, "minimum": 0, "type": "number"}.items() <= temperature.items()


def test_references_lead_somewhere():
    document = describe(OPERATIONS, "1.2.3")

    def check(value: object) -> None:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                assert reference.rpartition("/")[2] in document["components"]["schemas"], reference
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(document)


async def test_it_is_served_with_a_page_that_loads_nothing_from_elsewhere(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        document = (await client.get("/openapi.json")).json()
        page = await client.get("/docs")
    assert document["paths"]["/v1/completions"]["post"]["requestBody"]["required"] is True
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text and "https://" not in page.text


def test_what_may_be_one_or_several_is_described_as_both():
    schemas = describe(OPERATIONS, "1.2.3")["components"]["schemas"]

    def kinds(body: str, field: str) -> list[str]:
        return [part["type"] for part in schemas[body]["properties"][field]["anyOf"]]

    assert kinds("CompletionRequest", "prompt") == ["string", "array", "array", "array"]
    assert kinds("EmbeddingsRequest", "input") == ["string", "array", "array", "array"]
    assert kinds("ChatRequest", "stop") == ["string", "array"]
    assert kinds("ScoreRequest", "text_1") == kinds("ScoreRequest", "text_2") == ["string", "array"]
