"""The one place that maps errors to HTTP statuses and to the OpenAI error object."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import grpc  # type: ignore[import-untyped]
from pydantic import ValidationError
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    RequestCancelledError,
)

from engine.api import ContextTooLong, EngineDeadError, EngineError, QueueFull, RequestError

RETRY_AFTER_S = 1
INVALID_BODY = {                                   # pydantic's error type -> ours, for a body that is no JSON object
    "json_invalid": "the body is not valid JSON",
    "model_type": "the body must be a JSON object",
}

class ApiError(Exception):
    """An answer other than success: a status and the OpenAI error object."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


# What may well go wrong: the bases of all that `to_api_error` knows.
EXPECTED = (ApiError, ValidationError, EngineError, RayError, RayServeException, grpc.RpcError)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, message, param, code)


def unavailable(message: str) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE, message, code="service_unavailable", retry_after_s=RETRY_AFTER_S
    )


def to_api_error(error: BaseException) -> ApiError | None:
    """The answer for `error`, whichever side of the Ray boundary raised it; None: a fault of ours."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        error = error.cause                          # keeps type and param, which the wrapper's class may not
    match error:
        case ApiError():
            return error
        case ValidationError():
            return _invalid_body(error)
        case QueueFull():
            return ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE, str(error), code="queue_full", retry_after_s=RETRY_AFTER_S
            )
        case ContextTooLong():
            return bad_request(str(error), error.param, "context_length_exceeded")
        case RequestError():
            return bad_request(str(error), error.param)
        case BackPressureError():
            return ApiError(
                error.status_code, "too many requests are waiting; try again later", code="queue_full",
                retry_after_s=RETRY_AFTER_S,
            )
        case EngineDeadError():
            return unavailable(f"{error}; try again")
        case RayActorError() | DeploymentUnavailableError() | RequestCancelledError() | grpc.RpcError():
            return unavailable("the model's replica went away; try again")
    return None


def answer_for(error: BaseException) -> ApiError:
    """`to_api_error`, with a fault of ours as a bare 500: its text is for the log, not for clients."""
    return to_api_error(error) or ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR, "internal server error", code="internal_error"
    )


def _invalid_body(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] in INVALID_BODY and param is None:
        return bad_request(f"{INVALID_BODY[first['type']]}: {first['msg']}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        *parents, name = first["loc"]
        param = f"{path}.{name}" if (path := _path(parents)) else str(name)    # as it was sent, whatever it looks like
        return bad_request(f"unknown field '{param}'", param, "unknown_parameter")
    message = first["msg"].removeprefix("Value error, ")
    return bad_request(f"{param}: {message}" if param else message, param)


def _path(location: Sequence[int | str]) -> str | None:
    """`messages[0].content` for ('messages', 0, 'content'); tags of unions that pydantic adds are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
        else:
            break
    return path or None
