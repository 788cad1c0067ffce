"""Requests made of our own OpenAPI description, good ones and bad ones, against the real server."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serve_app.openapi import Operation
from serve_app.operations import OPERATIONS
from tests.integration.conftest import Application

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
MOST = {"n": 3, "best_of": 3, "max_tokens": 8, "max_completion_tokens": 8, "min_tokens": 8}     # answers stay short


@pytest.fixture(scope="session")
def described(script: Application) -> Any:
    document = httpx.get(f"{script.url}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=script.url)
    return schema


def shortened(body: Any) -> Any:
    """Large counts are asked for elsewhere; here each request should take little time."""
    if isinstance(body, dict):
        body = {field: min(value, MOST[field]) if field in MOST and isinstance(value, int) else value
                for field, value in body.items() if field != "model"}  # fmt: skip
    return body


REQUESTS = [(operation, GenerationMode.POSITIVE) for operation in OPERATIONS] + [
    (operation, GenerationMode.NEGATIVE) for operation in OPERATIONS if operation.body is not None
]


@pytest.mark.parametrize(
    ("operation", "mode"), REQUESTS, ids=[f"{operation.method} {operation.path} {mode}" for operation, mode in REQUESTS]
)
def test_no_request_breaks_the_server_or_the_description(described: Any, operation: Operation, mode: Any) -> None:
    strategy = described[operation.path][operation.method].as_strategy(generation_mode=mode)

    @settings(
        max_examples=150 if operation.body else 3, deadline=None, derandomize=True,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def check(case: Any) -> None:
        case.body = shortened(case.body)
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()


def test_the_server_is_unharmed(script: Application) -> None:
    script.assert_alive()
