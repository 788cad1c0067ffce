"""What clients send to /v1/completions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from serve_app.errors import bad_request
from serve_app.limits import RequestLimits
from serve_app.schemas.base import beyond
from serve_app.schemas.prompts import OneOrMorePrompts, Prompt, as_prompts
from serve_app.schemas.sampling import SamplingFields

DEFAULT_MAX_TOKENS = 16                              # the OpenAI reference's


class CompletionRequest(SamplingFields):
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {**SamplingFields.refused, "suffix": ("",)}

    prompt: Annotated[list[Prompt], BeforeValidator(as_prompts, json_schema_input_type=OneOrMorePrompts)] = Field(
        min_length=1, description="a string, a list of strings, a list of token ids or a list of such lists"
    )
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=0, description="0 only with echo")
    echo: bool = Field(False, description="the text begins with the prompt, and so do the log probabilities")
    logprobs: int | None = Field(
        None, ge=0, description="alternatives beside each token, of the distribution before temperature and penalties"
    )
    best_of: int | None = Field(
        None, ge=1, description="candidates, of which the n with the best mean log probability are returned; no stream"
    )
    return_token_ids: bool = Field(False, description="choices have `token_ids`, their new tokens")

    @model_validator(mode="after")
    def _check_combinations(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise bad_request("max_tokens: must be at least 1 unless echo is set", "max_tokens")
        if self.best_of not in (None, 1) and self.stream:
            raise bad_request("best_of is not allowed with stream", "best_of")
        if self.best_of is not None and self.best_of < self.n:
            raise bad_request(f"best_of: must not be less than n, which is {self.n}", "best_of")
        return self

    def check_limits(self, limits: RequestLimits) -> None:
        super().check_limits(limits)
        if self.num_candidates > limits.max_choices:
            raise beyond("best_of", limits.max_choices, "candidates")
        if len(self.prompt) > limits.max_prompts:
            raise beyond("prompt", limits.max_prompts, "prompts")
        if (self.logprobs or 0) > limits.max_logprobs:
            raise beyond("logprobs", limits.max_logprobs, "alternatives a token")

    @property
    def num_candidates(self) -> int:
        """Choices generated for each prompt, of which `n` are returned."""
        return self.best_of or self.n

    @property
    def num_prompt_logprobs(self) -> int | None:
        """What is echoed has log probabilities too."""
        asked = [count for count in (self.prompt_logprobs, self.logprobs if self.echo else None) if count is not None]
        return max(asked, default=None)

    @property
    def num_logprobs(self) -> int | None:
        """Those that the engine is asked for: to choose among candidates it takes those of their own tokens."""
        return 0 if self.logprobs is None and self.num_candidates > self.n else self.logprobs
