"""What clients send to /v1/embeddings."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from serve_app.limits import RequestLimits
from serve_app.schemas.base import beyond
from serve_app.schemas.encoding import EncodingFields
from serve_app.schemas.prompts import OneOrMorePrompts, Prompt, as_prompts


def _none_empty(prompts: list[Prompt]) -> list[Prompt]:
    if "" in prompts:
        raise ValueError("a text is empty")
    return prompts


class EmbeddingsRequest(EncodingFields):
    input: Annotated[
        list[Prompt],
        BeforeValidator(as_prompts, json_schema_input_type=OneOrMorePrompts),
        AfterValidator(_none_empty),
    ] = Field(min_length=1, description="a text or several, as strings or as token ids")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: of float32, little-endian")
    dimensions: int | None = Field(
        None, ge=1, description="leading numbers of the vector; brought to length 1 again if the model's vectors are"
    )
    add_special_tokens: bool = Field(True, description="those that the tokenizer puts around a text, e.g. [CLS]")

    def check_limits(self, limits: RequestLimits) -> None:
        if len(self.input) > limits.max_prompts:
            raise beyond("input", limits.max_prompts, "texts")
