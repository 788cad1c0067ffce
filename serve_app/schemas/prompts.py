"""Texts as clients send them: one or several, as strings or as token ids."""

from typing import Any

Prompt = str | list[int]
OneOrMorePrompts = str | list[str] | list[int] | list[list[int]]      # as they are sent


def as_prompts(value: Any) -> list[Prompt]:
    """One prompt or several, as text or token ids, as a list of prompts. Raises ValueError for anything else."""
    if isinstance(value, str) or (value and _is_token_ids(value)):
        prompts = [value]
    elif isinstance(value, list) and value and all(isinstance(p, str) or _is_token_ids(p) for p in value):
        prompts = value
    else:
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
    for prompt in prompts:
        if isinstance(prompt, list):
            _check_token_ids(prompt)
    return prompts


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


def _check_token_ids(token_ids: list[int]) -> None:
    if not token_ids:
        raise ValueError("a list of token ids is empty")
    if not 0 <= min(token_ids) <= max(token_ids) < 2**31:
        raise ValueError(f"{min(token_ids) if min(token_ids) < 0 else max(token_ids)} is not a token id")
