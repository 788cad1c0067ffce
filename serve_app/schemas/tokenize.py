"""What clients send to /tokenize and /detokenize, in vLLM's shape."""

from typing import Any

from pydantic import Field, model_validator

from serve_app.errors import bad_request
from serve_app.schemas.base import RequestBody
from serve_app.schemas.chat import Message
from serve_app.schemas.sampling import TokenId
from serve_app.schemas.tools import Tool


class TokenizeRequest(RequestBody):
    """A text, or a conversation that the model's chat template makes one."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[Tool] = Field(default_factory=list, description="functions that the conversation offers")
    add_special_tokens: bool | None = None             # default: as the endpoint for that form does
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_form(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("give either prompt or messages", "prompt")
        return self


class DetokenizeRequest(RequestBody):
    model: str | None = None
    tokens: list[TokenId]
