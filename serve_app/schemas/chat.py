"""What clients send to /v1/chat/completions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from serve_app.errors import bad_request
from serve_app.limits import RequestLimits
from serve_app.schemas.base import RequestBody, beyond
from serve_app.schemas.sampling import SamplingFields
from serve_app.schemas.tools import ToolFields


def _as_content(value: Any) -> Any:
    """Of its two shapes pydantic would tell only what is wrong with the first."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, dict) for part in value)):
        return value
    raise ValueError("must be a string or a list of parts, which are objects")


class Message(RequestBody):
    """One turn of the conversation. The chat template judges role and content: it knows what the model takes."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"function_call": (), "audio": (), "annotations": ([],)}

    role: str
    content: Annotated[str | list[dict[str, Any]] | None, BeforeValidator(_as_content)] = None
    reasoning_content: str | None = None              # of an answer sent back; some templates show it to the model
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    refusal: str | None = None                        # of an answer sent back: what was said in place of content

    def for_template(self) -> dict[str, Any]:
        message = self.model_dump(exclude_none=True, exclude={"refusal"})
        return message if self.content is not None or self.refusal is None else message | {"content": self.refusal}


class ChatRequest(ToolFields, SamplingFields):
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **SamplingFields.refused,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": ("none",),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: list[Message] = Field(
        min_length=1, description="roles as the model's template has them; content as text or as parts of type text"
    )
    max_tokens: int | None = Field(None, ge=1, description="left out: as many as the context has room for")
    max_completion_tokens: int | None = Field(None, ge=1, description="the newer name of max_tokens; it wins")
    logprobs: bool = Field(False, description="of the model's own distribution, before temperature and penalties")
    top_logprobs: int | None = Field(None, ge=0, description="alternatives beside each token; with logprobs only")
    add_generation_prompt: bool = Field(True, description="ends the prompt where the assistant is to speak")
    continue_final_message: bool = Field(
        False, description="the answer goes on with the last message; add_generation_prompt must be false"
    )
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="more variables for the template")

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs is only allowed with logprobs", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _check_structure(self) -> "ChatRequest":
        if self.grammar is not None and self.offered_tools:
            raise bad_request("structured output and tools exclude each other; tool_choice 'none' offers none", "tools")
        return self

    def check_limits(self, limits: RequestLimits) -> None:
        super().check_limits(limits)
        if len(self.messages) > limits.max_messages:
            raise beyond("messages", limits.max_messages, "messages")
        if (self.top_logprobs or 0) > limits.max_logprobs:
            raise beyond("top_logprobs", limits.max_logprobs, "alternatives a token")

    def max_tokens_within(self, num_free_tokens: int) -> int:
        """Most tokens of an answer, for which the context has `num_free_tokens`; by default all of them.

        At least 1, so that a prompt that fills the context is refused in the engine's words.
        """
        return self.max_completion_tokens or self.max_tokens or max(num_free_tokens, 1)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
