"""The OpenAPI description of the HTTP side, made of the schemas that judge the requests."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from serve_app.schemas.base import RequestBody

Handler = Callable[[Request], Awaitable[Response | ASGIApp]]

_SCHEMA_PREFIX = "#/components/schemas/"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_EVENT = {
    "type": "object",
    "description": "One event: a chunk of the answer as JSON, an error object, or [DONE]",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}
_REFUSALS = {                                          # of operations with a body
    400: "The request is malformed, or asks for what this server does not do; `param` names the field",
    404: "No such model",
    405: "Another method is meant",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    500: "The request failed by a fault of the server",
    503: "No replica can take the request now; try again",
    504: "The request was not finished in time",
}
_REFUSALS_WITHOUT_BODY = (404, 405, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[RequestBody] | None = None
    streams: bool = False                              # whether `stream` turns the answer into server-sent events
    content: str = "application/json"                  # the media type of an answer


def describe(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    operations = tuple(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Conveyor",
            "version": version,
            "description": "Large language models on Ray Serve, behind the OpenAI API. A field that is null counts as "
            "left out; a field that is unknown is refused by name.",
        },
        "paths": paths,
        "components": {"schemas": {**schemas_of(operations), "Error": _ERROR}},
    }


def schemas_of(operations: Iterable[Operation]) -> dict[str, Any]:
    """The JSON schemas of all bodies and of what they hold, by name."""
    bodies = {operation.body for operation in operations if operation.body is not None}
    _, schemas = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)],
        ref_template=_SCHEMA_PREFIX + "{model}",
    )
    found: dict[str, Any] = schemas.get("$defs", {})
    return found


def _operation(operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {operation.content: {"schema": {"type": _type_of(operation.content)}}}
    if operation.streams:
        success["text/event-stream"] = {"schema": _EVENT}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.handler.__name__,
        "responses": {"200": {"description": "Success", "content": success}},
    }
    parameters = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if parameters:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters
        ]
    for status, description in _REFUSALS.items():
        if operation.body is None and status not in _REFUSALS_WITHOUT_BODY:
            continue
        described["responses"][str(status)] = {
            "description": description,
            "content": {"application/json": {"schema": {"$ref": f"{_SCHEMA_PREFIX}Error"}}},
        }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _SCHEMA_PREFIX + operation.body.__name__}}},
        }
    return described


def _type_of(content: str) -> str:
    return "object" if content == "application/json" else "string"
