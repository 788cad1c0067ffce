"""What a request asks of sampling and of stopping; a value, validated once, carried unchanged to the runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.sampling.grammar.spec import GrammarSpec


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are drawn and when it ends.

    The ranges are those of the OpenAI reference where it has the field, of transformers `generate` otherwise;
    `serve_app.schemas` checks them. Penalties and `logit_bias` change logits before temperature; logprobs are
    those of the model, before all of them.
    """

    max_tokens: int                                  # most output tokens, >= 0
    temperature: float = 1.0                         # < 1e-5: greedy
    top_k: int = 0                                   # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0                           # mass of the locally typical set kept; 1: off
    presence_penalty: float = 0.0                    # over output tokens
    frequency_penalty: float = 0.0                   # over output tokens
    repetition_penalty: float = 1.0                  # over prompt and output tokens
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> addend
    allowed_token_ids: tuple[int, ...] | None = None   # no others are drawn, end tokens included; None: all
    bad_words: tuple[tuple[int, ...], ...] = ()        # sequences of token ids that the output never holds
    grammar: GrammarSpec | None = None               # what the whole output has to look like
    seed: int = 0                                    # drawn at admission where the client gave none
    min_tokens: int = 0                              # no end of sequence before this many output tokens
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    kept_special_token_ids: tuple[int, ...] = ()     # in the text all the same: a parser behind the engine needs them
    logprobs: int | None = None                      # alternatives beside the sampled token; None: no logprobs
    prompt_logprobs: int | None = None               # the same for every prompt token but the first

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def changes_logits(self) -> bool:
        """Whether penalties, a bias or a mask touch the logits, so that the runner must apply them."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.min_tokens
            or self.allowed_token_ids is not None
            or self.bad_words
            or self.grammar is not None
        )
