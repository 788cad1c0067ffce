"""RequestBody: the base of all request schemas. Strict types, null means omitted, nothing unknown passes unnoticed."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from serve_app.errors import bad_request


class RequestBody(BaseModel):
    """An object that a client sends.

    Besides its fields, a schema names the fields of the OpenAI reference that it knows and does not serve:
    `harmless` ones change no output and are dropped; `refused` ones are an error unless they have one of the
    values that ask for nothing.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    harmless: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}   # field -> values that ask for nothing

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Raises ValidationError or ApiError."""
        return cls.model_validate_json(body)

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kept = {}
        for key, value in values.items():
            if value is None or key in cls.harmless:
                continue
            if key in cls.refused:
                if value in cls.refused[key]:
                    continue
                raise bad_request(f"'{key}' is not supported by this server", key, "unsupported_parameter")
            kept[key] = value
        return kept
