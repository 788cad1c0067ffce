"""Chat messages of the OpenAI API in the plain form that chat templates expect: content is one string, or absent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidRequest

KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def plain_messages(messages: Sequence[Mapping[str, Any]], *, keep_developer: bool = False) -> list[dict[str, Any]]:
    """New messages: text parts joined with nothing between them, absent instead of null, tool arguments as objects.

    The role "developer" becomes "system", its older name, for templates that do not know it. Raises InvalidRequest
    for what is malformed or not text.
    """
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    return [_plain_message(message, f"messages[{index}]", keep_developer) for index, message in enumerate(messages)]


def _plain_message(message: Any, where: str, keep_developer: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where} needs a role", param="messages")
    plain = {key: value for key, value in message.items() if value is not None}
    if plain["role"] == "developer" and not keep_developer:
        plain["role"] = "system"
    if "tool_calls" in plain:
        plain["tool_calls"] = [_plain_tool_call(call, where) for call in plain["tool_calls"]]
    if "content" in plain:
        plain["content"] = _joined_text(plain["content"], f"{where}.content")
    elif plain["role"] == "assistant" and plain.get("reasoning_content") and not plain.get("tool_calls"):
        plain["content"] = ""                      # an answer that was cut in its reasoning
    elif not (plain["role"] == "assistant" and (plain.get("tool_calls") or plain.get("function_call"))):
        raise InvalidRequest(f"{where} has no content: only one with tool calls may lack it", param="messages")
    return plain


def _joined_text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or not content:
        raise InvalidRequest(f"{where} must be a string or a list of parts", param="messages")
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("image_url", "input_audio", "video_url", "file"):
        raise InvalidRequest(f"{where} is of type '{kind}': this model takes text only", param="messages")
    if kind != "text":
        raise InvalidRequest(f"{where} has an unknown type: {kind!r}; known: 'text'", param="messages")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text must be a string", param="messages")
    if unknown := sorted(key for key, value in part.items() if value is not None and key not in ("type", "text")):
        raise InvalidRequest(f"{where} of type 'text' has an unknown field '{unknown[0]}'", param="messages")
    return text


def _plain_tool_call(call: Any, where: str) -> Any:
    """Arguments travel as JSON text; templates write them as JSON themselves and expect the object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where}.tool_calls needs entries with a function", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise InvalidRequest(f"{where}.tool_calls: the arguments are not valid JSON", param="messages") from None
    return {**call, "function": {**function, "arguments": arguments}}
