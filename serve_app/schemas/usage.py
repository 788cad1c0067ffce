"""The `usage` object of a response."""

from collections.abc import Sequence
from typing import Any

from engine.api import RequestOutput


def usage(choices: Sequence[RequestOutput], n: int) -> dict[str, Any]:
    """Of the last outputs of all choices; a prompt that has n choices counts once."""
    num_prompt_tokens = sum(choice.num_prompt_tokens for choice in choices[::n])
    num_output_tokens = sum(choice.num_output_tokens for choice in choices)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.num_cached_tokens for choice in choices[::n])},
    }
