"""What clients send to /v1/score, in vLLM's shape."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from serve_app.errors import bad_request
from serve_app.limits import RequestLimits
from serve_app.schemas.base import beyond
from serve_app.schemas.encoding import EncodingFields


def _as_texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_as_texts, json_schema_input_type=str | list[str])]


class ScoreRequest(EncodingFields):
    """One text with each of several, or as many with as many."""

    text_1: Texts = Field(min_length=1, description="a text, or as many as text_2")
    text_2: Texts = Field(min_length=1, description="a text or several")

    @model_validator(mode="after")
    def _check_counts(self) -> "ScoreRequest":
        if len(self.text_1) not in (1, len(self.text_2)):
            raise bad_request(
                f"text_1 has {len(self.text_1)} texts and text_2 {len(self.text_2)}: give one and any number, or as "
                f"many of both",
                "text_1",
            )
        return self

    def check_limits(self, limits: RequestLimits) -> None:
        if len(self.text_2) > limits.max_prompts:
            raise beyond("text_2", limits.max_prompts, "texts")

    def pairs(self) -> list[tuple[str, str]]:
        firsts = self.text_1 * len(self.text_2) if len(self.text_1) == 1 else self.text_1
        return list(zip(firsts, self.text_2, strict=True))
