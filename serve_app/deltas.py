"""One choice's text as the deltas of the chat API: content, reasoning, tool calls."""

from collections.abc import Callable, Iterable
from typing import Any

from engine.api import AnswerParser, Arguments, CallStart, Content, Reasoning

Delta = dict[str, Any]


class Deltas:
    """Reads the text of one choice. Without a parser all of it is content."""

    def __init__(self, parser: AnswerParser | None, new_call_id: Callable[[], str]) -> None:
        self._parser = parser
        self._new_call_id = new_call_id
        self.has_calls = False

    @property
    def first(self) -> Delta:
        """What opens the stream of a choice. Whether it will have content is not known yet if a parser has a say."""
        return {"role": "assistant", "content": "" if self._parser is None else None}

    def read(self, text: str, *, is_last: bool) -> list[Delta]:
        if self._parser is None:
            return [{"content": text}] if text else []
        events = self._parser.push(text) + (self._parser.finish() if is_last else [])
        deltas: list[Delta] = []
        for event in events:
            match event:
                case Content(piece):
                    deltas.append({"content": piece})
                case Reasoning(piece):
                    deltas.append({"reasoning_content": piece})
                case CallStart(index, name):
                    self.has_calls = True
                    function = {"name": name, "arguments": ""}
                    call = {"index": index, "id": self._new_call_id(), "type": "function", "function": function}
                    deltas.append({"tool_calls": [call]})
                case Arguments(index, piece):
                    deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        return deltas


def message(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The message that `deltas` make up; content is null beside calls or reasoning if there is none."""
    content, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({**call, "function": dict(call["function"])})
                del calls[-1]["index"]
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    answer: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        answer["reasoning_content"] = reasoning
    if calls:
        answer["tool_calls"] = calls
    if not content and (reasoning or calls):
        answer["content"] = None
    return answer
