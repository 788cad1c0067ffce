"""The formats that are known, and which of them a model uses: found out from its chat template."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from engine.text.chat_template import ChatTemplate
from engine.text.parsers import gemma, hermes, llama, mistral
from engine.text.parsers.answer import AnswerParser
from engine.text.parsers.gemma import GemmaParser
from engine.text.parsers.hermes import HermesParser
from engine.text.parsers.llama import LlamaParser
from engine.text.parsers.machine import Machine
from engine.text.parsers.mistral import MistralParser
from engine.text.parsers.reasoning import ReasoningParser, ReasoningTags
from engine.text.parsers.syntax import CallSyntax, Function, calls_grammar
from engine.text.tokenizer import Tokenizer

Format = TypeVar("Format")


class _MakeParser(Protocol):
    def __call__(self, names: Collection[str], *, hidden: Collection[str]) -> Machine: ...


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family writes calls. `signs` are texts of a chat template; one that has any of them uses the format."""

    parser: _MakeParser
    syntax: CallSyntax
    markers: tuple[str, ...]                       # that the parser reads, and that may be special tokens
    signs: tuple[str, ...]
    not_signs: tuple[str, ...] = ()                # of other formats with the same markers
    stops: tuple[str, ...] = ()                    # tokens with which the model hands over to the tools
    call_id_length: int | None = None              # of the letters and digits that its template insists on


# The order matters: a template that has signs of two formats uses the first.
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "mistral_v11": ToolFormat(
        MistralParser, mistral.NAMED_SYNTAX, mistral.MARKERS, (mistral.ARGUMENTS,), call_id_length=9
    ),
    "mistral": ToolFormat(MistralParser, mistral.LIST_SYNTAX, mistral.MARKERS, (mistral.OPEN,), call_id_length=9),
    "gemma4": ToolFormat(
        partial(GemmaParser, marks=gemma.GEMMA_4), gemma.GEMMA_4.syntax, gemma.GEMMA_4.all, (gemma.GEMMA_4.open,),
        stops=("<|tool_response>",),
    ),
    "functiongemma": ToolFormat(
        partial(GemmaParser, marks=gemma.FUNCTION_GEMMA), gemma.FUNCTION_GEMMA.syntax, gemma.FUNCTION_GEMMA.all,
        (gemma.FUNCTION_GEMMA.open,),
        stops=("<start_function_response>",),
    ),
    "hermes": ToolFormat(
        HermesParser, hermes.SYNTAX, hermes.MARKERS, (hermes.OPEN,), not_signs=("<function=", "<arg_key>")
    ),
    "llama3": ToolFormat(LlamaParser, llama.SYNTAX, llama.MARKERS, (llama.TAG, "Environment: ipython")),
}  # fmt: skip

REASONING_TAGS: Mapping[str, ReasoningTags] = {
    "think": ReasoningTags("<think>", "</think>", ("<think>", "</think>")),
    "mistral": ReasoningTags("[THINK]", "[/THINK]", ("[THINK]", "[/THINK]")),
    "gemma4": ReasoningTags("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>")),
}


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the answers of one model are to be read."""

    tools: ToolFormat | None
    reasoning: ReasoningTags | None
    special_tokens: Mapping[str, int]              # of the markers, those that the detokenizer would drop
    stop_token_ids: tuple[int, ...] = ()           # of answers that may call tools

    @property
    def call_id_length(self) -> int | None:
        return self.tools.call_id_length if self.tools else None

    def kept_token_ids(self, *, with_tools: bool) -> tuple[int, ...]:
        """Special tokens that have to be in the text for the parser."""
        return tuple(self.special_tokens[marker] for marker in self._kept(with_tools))

    def parser(
        self, prompt: str, names: Collection[str] = (), *, max_calls: int | None = None, is_raw: bool = False
    ) -> AnswerParser | None:
        """For an answer to `prompt` that may call functions of `names`. None: all of it is content.

        `is_raw`: the client asked for special tokens, so that none is hidden where it is content.
        """
        tools = self.tools if names else None
        if tools is None and self.reasoning is None:
            return None
        hidden = () if is_raw else self._kept(tools is not None)
        calls = None if tools is None else tools.parser(names, hidden=hidden)
        if self.reasoning is None:
            return AnswerParser(calls=calls, max_calls=max_calls)
        is_open = self.reasoning.opened_by(prompt)
        here, passes = (hidden, ()) if calls is None else ((), hidden)
        reasoning = ReasoningParser(self.reasoning, is_open=is_open, hidden=here, passes=passes)
        return AnswerParser(reasoning, calls, max_calls=max_calls)

    def grammar(
        self, prompt: str, functions: Sequence[Function], *, must_call: bool, max_calls: int | None = None
    ) -> str:
        """Lark for an answer to `prompt` whose calls are all valid. Call it only if `tools` is known."""
        assert self.tools is not None
        return calls_grammar(
            self.tools.syntax,
            functions,
            self.special_tokens,
            several=max_calls != 1,
            must_call=must_call,
            reasoning=self.reasoning,
            is_reasoning_open=self.reasoning is not None and self.reasoning.opened_by(prompt),
        )

    def _kept(self, with_tools: bool) -> tuple[str, ...]:
        """Markers that are special tokens."""
        markers = (self.tools.markers if self.tools and with_tools else ()) + _tags(self.reasoning)
        return tuple(marker for marker in markers if marker in self.special_tokens)


def answer_format(tokenizer: Tokenizer, *, tool_parser: str = "auto", reasoning_parser: str = "auto") -> AnswerFormat:
    """The format of the model whose tokenizer this is. The parsers are names of the tables above, "none" or "auto"."""
    template = tokenizer.chat_template
    tools = _chosen(tool_parser, TOOL_FORMATS, partial(_has_signs, template))
    reasoning = _chosen(reasoning_parser, REASONING_TAGS, partial(_has_tags, template))
    markers = (*(tools.markers if tools else ()), *_tags(reasoning))
    stops = [tokenizer.special_token_id(stop) for stop in (tools.stops if tools else ())]
    special = {marker: tokenizer.special_token_id(marker) for marker in markers}
    return AnswerFormat(
        tools,
        reasoning,
        {marker: token_id for marker, token_id in special.items() if token_id is not None},
        tuple(token_id for token_id in stops if token_id is not None),
    )


def _chosen(name: str, known: Mapping[str, Format], fits: Callable[[Format], bool]) -> Format | None:
    if name == "none":
        return None
    if name == "auto":
        return next((format for format in known.values() if fits(format)), None)
    return known[name]


def _has_signs(template: ChatTemplate | None, format: ToolFormat) -> bool:
    return template is not None and template.mentions(*format.signs) and not template.mentions(*format.not_signs)


def _has_tags(template: ChatTemplate | None, tags: ReasoningTags) -> bool:
    return template is not None and template.mentions(tags.close)


def _tags(tags: ReasoningTags | None) -> tuple[str, ...]:
    return tags.tokens if tags else ()
