"""The sampling and streaming fields that completions and chat completions share."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from engine.api import SamplingParams, Tokenizer
from serve_app.errors import bad_request
from serve_app.limits import RequestLimits
from serve_app.schemas.base import RequestBody, beyond
from serve_app.schemas.structured import StructuredFields

SEED_BITS = 63
MAX_USER_LENGTH = 256


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopString = Annotated[str, Field(min_length=1)]


class StreamOptions(RequestBody):
    include_usage: bool = Field(False, description="one more chunk, the last, has the usage and no choices")


class SamplingFields(StructuredFields):
    """Fields beyond the OpenAI reference carry the names and meanings that vLLM and SGLang gave them."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {      # each with the values that ask for nothing
        "metadata": ({},),
        "store": (False,),
        "prompt_cache_key": (),
        "service_tier": ("auto", "default"),
    }

    model: str | None = Field(None, description="the model's name; left out: the only one")
    stream: bool = Field(False, description="server-sent events, ended by [DONE]; comments while nothing comes")
    stream_options: StreamOptions | None = Field(None, description="with stream only")
    n: int = Field(1, ge=1, description="choices; they share the prompt's KV blocks, and draw differently")
    temperature: float = Field(1.0, ge=0, le=2, description="below 0.00001: greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31, description="0 and -1: off")
    min_p: float = Field(0.0, ge=0, le=1, description="least probability, as a part of the best token's")
    typical_p: float = Field(1.0, gt=0, le=1, description="locally typical sampling, before top_k, top_p and min_p")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="over output tokens")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="over output tokens")
    repetition_penalty: float = Field(1.0, gt=0, le=10, description="over prompt and output tokens, as transformers")
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, description="token id -> addend"
    )
    seed: int | None = Field(
        None, ge=-(2**SEED_BITS), lt=2**SEED_BITS, description="the same answer for the same seed, whatever else runs"
    )
    min_tokens: int = Field(0, ge=0, description="no end before so many output tokens")
    stop: Annotated[list[StopString], BeforeValidator(_as_list, json_schema_input_type=str | list[StopString])] = Field(
        default_factory=list, description="a string or several; they may begin and end inside tokens"
    )
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    bad_words: list[StopString] = Field(default_factory=list, description="texts that the output never completes")
    allowed_token_ids: list[TokenId] | None = Field(
        None, min_length=1, description="no others are drawn, end tokens included"
    )
    ignore_eos: bool = Field(False, description="the model's end tokens end nothing")
    include_stop_str_in_output: bool = Field(False, description="the text keeps the stop string or token")
    skip_special_tokens: bool = Field(True, description="special tokens are not part of the text")
    truncate_prompt_tokens: int | None = Field(None, ge=1, description="keeps the last tokens of a longer prompt")
    prompt_logprobs: int | None = Field(
        None, ge=0, description="alternatives beside each token of the prompt; not with stream"
    )
    priority: int = Field(
        0, ge=-(2**31), lt=2**31, description="lower first, under the policies that mind it: chunked, fair"
    )
    user: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = Field(
        None, description="the tenant, for policy fair"
    )
    safety_identifier: Annotated[str, Field(max_length=MAX_USER_LENGTH)] | None = Field(
        None, description="the newer name of user; it wins"
    )

    @property
    def tenant(self) -> str | None:
        return self.safety_identifier or self.user

    def check_limits(self, limits: RequestLimits) -> None:
        if self.n > limits.max_choices:
            raise beyond("n", limits.max_choices, "choices")
        if len(self.stop) > limits.max_stops:
            raise beyond("stop", limits.max_stops, "stop strings")
        if len(self.stop_token_ids) > limits.max_stops:
            raise beyond("stop_token_ids", limits.max_stops, "stop token ids")
        if len(self.bad_words) > limits.max_bad_words:
            raise beyond("bad_words", limits.max_bad_words, "bad words")
        if len(self.logit_bias) > limits.max_logit_bias:
            raise beyond("logit_bias", limits.max_logit_bias, "entries")
        for field, texts in (("stop", self.stop), ("bad_words", self.bad_words)):
            if max(map(len, texts), default=0) > limits.max_stop_length:
                raise bad_request(f"{field}: a text is longer than {limits.max_stop_length} characters", field)
        if (self.prompt_logprobs or 0) > limits.max_logprobs:
            raise beyond("prompt_logprobs", limits.max_logprobs, "alternatives a token")

    @model_validator(mode="after")
    def _check_combinations_with_stream(self) -> "SamplingFields":
        if self.prompt_logprobs is not None and self.stream:
            raise bad_request("prompt_logprobs is not allowed with stream", "prompt_logprobs")
        return self

    @model_validator(mode="after")
    def _check_stream_options(self) -> "SamplingFields":
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is only allowed with stream", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def truncated(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The prompt, or its end if the client wants no more of it."""
        return tuple(token_ids if self.truncate_prompt_tokens is None else token_ids[-self.truncate_prompt_tokens :])

    def bad_word_ids(self, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
        """Each bad word in the tokens that begin a text and in those that go on with one, behind a space."""
        spelled = (text for word in self.bad_words for text in (word.lstrip(), " " + word.lstrip()))
        ids = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spelled)
        return tuple(dict.fromkeys(word for word in ids if word))

    def sampling(
        self, max_tokens: int, *, logprobs: int | None = None, prompt_logprobs: int | None = None,
        bad_words: tuple[tuple[int, ...], ...] = (),
    ) -> SamplingParams:  # fmt: skip
        """The engine's value. A seed is drawn here where the client gave none, and travels with the request."""
        if self.min_tokens > max_tokens:
            raise bad_request(f"min_tokens is {self.min_tokens}, more than max_tokens {max_tokens}", "min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self._logit_bias(),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=bad_words,
            grammar=self.grammar,
            seed=secrets.randbits(SEED_BITS) if self.seed is None else self.seed,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _logit_bias(self) -> dict[int, float]:
        for key in self.logit_bias:
            if not (key.isascii() and key.isdigit() and int(key) < 2**31):
                raise bad_request(f"logit_bias: '{key}' is not a token id", "logit_bias")
        return {int(key): bias for key, bias in self.logit_bias.items()}
