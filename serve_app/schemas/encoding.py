"""The fields that embeddings, scores and rankings share."""

from typing import Annotated

from pydantic import Field, field_validator

from engine.api import ContextTooLong
from serve_app.schemas.base import RequestBody
from serve_app.schemas.sampling import MAX_USER_LENGTH

AS_LONG_AS_ALLOWED = -1


class EncodingFields(RequestBody):
    """Fields beyond the OpenAI reference carry the names and meanings that vLLM gave them."""

    model: str | None = Field(None, description="the model's name; left out: the only one")
    user: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = Field(
        None, description="the tenant; the texts of tenants take turns"
    )
    truncate_prompt_tokens: int | None = Field(
        None, ge=AS_LONG_AS_ALLOWED, description="cuts the end of a longer text; -1: to what the model takes"
    )

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _check_truncation(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be -1 or at least 1")
        return value

    def max_length(self, max_model_len: int) -> int | None:
        """Tokens to cut longer texts to; None: they are refused. Raises ContextTooLong."""
        if self.truncate_prompt_tokens == AS_LONG_AS_ALLOWED:
            return max_model_len
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens > max_model_len:
            raise ContextTooLong(
                f"truncate_prompt_tokens is {self.truncate_prompt_tokens}; the model takes at most {max_model_len}",
                param="truncate_prompt_tokens",
            )
        return self.truncate_prompt_tokens
