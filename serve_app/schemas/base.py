"""RequestBody: the base of all request schemas. Strict types, null means omitted, nothing unknown passes unnoticed."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from serve_app.errors import ApiError, bad_request
from serve_app.json_body import parse_json
from serve_app.limits import RequestLimits


class RequestBody(BaseModel):
    """An object that a client sends.

    Besides its fields, a schema names the fields of the OpenAI reference that it knows and does not serve: they are
    `refused` unless they have one of the values that ask for nothing.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}   # field -> values that ask for nothing

    @classmethod
    def parse(cls, body: bytes, limits: RequestLimits | None = None) -> Self:
        """Raises ValidationError or ApiError."""
        request = cls.model_validate(parse_json(body))
        request.check_limits(limits or RequestLimits())
        return request

    def check_limits(self, limits: RequestLimits) -> None:
        """Raises ApiError for a field that asks for more than the server gives one request."""

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kept = {}
        for key, value in values.items():
            if value is None:
                continue
            if key in cls.refused:
                if value in cls.refused[key]:
                    continue
                raise bad_request(f"'{key}' is not supported by this server", key, "unsupported_parameter")
            kept[key] = value
        return kept


def beyond(field: str, limit: int, unit: str) -> ApiError:
    """The refusal of a field that holds too much."""
    return bad_request(f"{field}: at most {limit} {unit} in one request", field, "limit_exceeded")
