"""RequestLimits: how much one request may ask for, as the YAML's `limits` say."""

from pydantic import Field

from engine.api import StrictModel


class RequestLimits(StrictModel):
    """A request beyond a limit is a 400 that names field and limit."""

    max_prompts: int = Field(2048, gt=0, description="prompts, or texts to embed, in one request")
    max_choices: int = Field(128, gt=0, description="n, and best_of")
    max_stops: int = Field(16, gt=0, description="stop strings, and as many stop token ids")
    max_stop_length: int = Field(256, gt=0, description="characters of one stop string or bad word")
    max_bad_words: int = Field(256, gt=0, description="bad_words")
    max_logit_bias: int = Field(1024, gt=0, description="entries of logit_bias")
    max_logprobs: int = Field(20, ge=0, description="alternatives beside each token in logprobs and prompt_logprobs")
    max_messages: int = Field(2048, gt=0, description="messages of a conversation")
    max_tools: int = Field(128, gt=0, description="tools of a conversation")
