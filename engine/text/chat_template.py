"""Chat templates: a conversation rendered to the text a model was trained on.

Templates come with the model and are programs: they run in Jinja's sandbox, as in transformers, with the loops they
take and the text they make bounded. The rendered text holds its special tokens already: encode it with
`add_special_tokens=False`, or BOS is there twice.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ConfigError, InvalidRequest
from engine.text.messages import KNOWN_ROLES, plain_messages

_MAX_LOOP_PASSES = 2_000_000                       # in one rendering
_MAX_CHARACTERS = 32_000_000                       # of one rendering, and of any repeated string
_LOOP_BUDGET = "loop budget"                       # a context variable that no template can name
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "     # its space shows whether the template trims content
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
NO_TEMPLATE = "this model has no chat template: send the whole prompt as text to /v1/completions instead"

Message = Mapping[str, Any]


class ChatTemplate:
    """The chat templates of one model: the "default" one and, for some, one for conversations with tools."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, jinja2.Template] = {}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of `messages`, given as the OpenAI API has them.

        `continue_final_message` leaves the last message open, for the model to go on with it. Raises InvalidRequest
        for messages that are malformed or not text, and for whatever the template itself refuses, in its own words.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        extra = dict(chat_template_kwargs or {})
        if reserved := _RESERVED & extra.keys():
            raise InvalidRequest(f"'{min(reserved)}' is not for chat_template_kwargs", param="chat_template_kwargs")
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        plain = plain_messages(messages, keep_developer="developer" in self._sources.get(name, ""))
        final = _mark_final_message(plain) if continue_final_message else None
        text = self._run(name, {
            **self._special_tokens, **extra, "messages": plain, "tools": list(tools) if tools else None,
            "documents": None, "add_generation_prompt": add_generation_prompt,
        })
        _refuse_ignored_roles(plain, text)
        return text if final is None else _cut_at_mark(text, final)

    def mentions(self, *texts: str) -> bool:
        """Whether any of `texts` stands in a template: how to find out what format a model was trained on."""
        return any(text in source for source in self._sources.values() for text in texts)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether a template reads the tools of a conversation; others render them to nothing."""
        try:
            trees = [self._environment.parse(source) for source in self._sources.values()]
        except jinja2.TemplateSyntaxError:         # the first rendering will tell
            return False
        return any(name.name == "tools" for tree in trees for name in tree.find_all(jinja2.nodes.Name))

    def _run(self, name: str, variables: dict[str, Any]) -> str:
        try:
            template = self._compile(name)
            pieces, size = [], 0
            for piece in template.generate({**variables, _LOOP_BUDGET: _LoopBudget()}):
                pieces.append(piece)
                size += len(piece)
                if size > _MAX_CHARACTERS:
                    raise SecurityError(f"the rendered text exceeds {_MAX_CHARACTERS} characters")
            return "".join(pieces)
        except _Refusal as error:
            raise InvalidRequest(error.message or "the chat template refused the messages", param="messages") from error
        except Exception as error:                 # templates are programs: any Python error may come out of one
            raise InvalidRequest(
                f"the model's chat template failed on these messages: {error or type(error).__name__}", param="messages"
            ) from error

    def _compile(self, name: str) -> jinja2.Template:
        if name not in self._sources:
            raise InvalidRequest(NO_TEMPLATE, param="messages")
        if name not in self._compiled:
            self._compiled[name] = self._environment.from_string(self._sources[name])
        return self._compiled[name]

    @cached_property
    def _environment(self) -> "_Environment":
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters |= {"tojson": _tojson, "counted": _counted}
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        return environment


def check_chat_template(source: str) -> None:
    """Raises ConfigError if `source` does not compile."""
    try:
        ChatTemplate({}, {})._environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat_template: line {error.lineno}: {error.message}") from None


class _Refusal(jinja2.TemplateError):
    """A template called raise_exception."""


class _LoopBudget:
    """Loop passes that one rendering may still take."""

    def __init__(self) -> None:
        self.left = _MAX_LOOP_PASSES


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with every loop counted and no repetition of strings beyond the size of a rendering."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            loop.iter = jinja2.nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("the operator ** is not for chat templates")
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and len(sequence) * int(count) > _MAX_CHARACTERS:
                raise SecurityError("a repeated string is too long")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; serving only renders what it encloses."""

    tags = {"generation"}                          # noqa: RUF012 (a set in the base class)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget = context[_LOOP_BUDGET]
    for item in items:
        budget.left -= 1
        if budget.left < 0:
            raise SecurityError(f"the loops of the chat template exceed {_MAX_LOOP_PASSES} passes")
        yield item


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models see it in training: Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _mark_final_message(messages: list[dict[str, Any]]) -> str:
    """Append the mark to the last message, in place; returns its content without it."""
    content = messages[-1].get("content") if messages else None
    if content is None:
        raise InvalidRequest(
            "continue_final_message needs a last message with content", param="continue_final_message"
        )
    messages[-1] = copy.copy(messages[-1]) | {"content": content + _CONTINUE_MARK}
    return str(content)


def _cut_at_mark(text: str, final: str) -> str:
    position = text.rfind(_CONTINUE_MARK.strip())
    if position < 0 or final.strip() not in text:
        raise InvalidRequest("the chat template drops the message to continue", param="continue_final_message")
    keeps_spaces = text.startswith(_CONTINUE_MARK, position)
    return text[:position] if keeps_spaces else text[:position].rstrip()


def _refuse_ignored_roles(messages: Sequence[Message], text: str) -> None:
    """Most templates skip roles they do not know; the client shall hear of it."""
    for index, message in enumerate(messages):
        if message["role"] not in KNOWN_ROLES and message.get("content", "").strip() not in text:
            raise InvalidRequest(
                f"messages[{index}]: the model's chat template has no role '{message['role']}'", param="messages"
            )
