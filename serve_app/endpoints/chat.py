"""POST /v1/chat/completions."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import AnswerFormat, AnswerParser, GrammarSpec, SamplingParams, Tokenizer
from serve_app.chat_answer import ChatAnswer
from serve_app.deltas import Deltas
from serve_app.errors import bad_request
from serve_app.generation import respond
from serve_app.schemas.chat import ChatRequest, Message
from serve_app.schemas.tools import Tool, tools_refused
from serve_app.service import Identity, Service, check_context, service_of


class Conversation(Protocol):
    """What a chat template is given; of the bodies of several endpoints."""

    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: dict[str, Any]

    @property
    def messages(self) -> Sequence[Message] | None: ...


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A conversation, rendered and encoded."""

    text: str
    token_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]


async def chat_completions(http: Request) -> ASGIApp:
    service = service_of(http)
    body = ChatRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    _check_tools(service, body)
    stats = await service.ready("generate")
    prompt = await service.in_pool(_prompt, service.tokenizer, body)
    identity = Identity.new("chatcmpl", service.model)
    max_tokens = body.max_tokens_within(stats.max_model_len - len(prompt.token_ids))
    check_context(len(prompt.token_ids), max_tokens, stats.max_model_len, prompt_param="messages")
    sampling = body.sampling(
        max_tokens, logprobs=body.num_logprobs, prompt_logprobs=body.prompt_logprobs, bad_words=prompt.bad_words
    )
    is_structured = sampling.grammar is not None      # content then, from its first character to its last
    parsers = [None if is_structured else _parser(service, body, prompt.text) for _ in range(body.n)]
    new_call_id = partial(_new_call_id, service.answer_format.call_id_length)
    sampling = _with_calls(sampling, service.answer_format, body, prompt.text)
    return await respond(
        http,
        service.replicas,
        identity.requests([prompt.token_ids], body.n, sampling, priority=body.priority, tenant=body.tenant),
        ChatAnswer(service, body, identity, [Deltas(parser, new_call_id) for parser in parsers]),
        stream=body.stream,
        timeout_s=service.request_timeout_s,
        keep_alive_s=service.keep_alive_s,
    )


def _check_tools(service: Service, body: ChatRequest) -> None:
    _check_takes_tools(service.tokenizer, body.offered_tools)
    if body.offered_tools and service.answer_format.tools is None:
        raise tools_refused("how the model writes calls is not known; its operator may set tool_parser")


def _check_takes_tools(tokenizer: Tokenizer, tools: Sequence[Tool]) -> None:
    """Most templates render tools that they do not know to nothing; the client shall hear of it."""
    if tools and tokenizer.chat_template is not None and not tokenizer.chat_template.takes_tools:
        raise tools_refused("the model's chat template does not take any")


def _prompt(tokenizer: Tokenizer, body: ChatRequest) -> _Prompt:
    text = rendered(tokenizer, body, body.offered_tools)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return _Prompt(text, body.truncated(token_ids), body.bad_word_ids(tokenizer))


def rendered(tokenizer: Tokenizer, body: Conversation, tools: Sequence[Tool] = ()) -> str:
    """The conversation as one text, its special tokens included."""
    _check_takes_tools(tokenizer, tools)
    if tokenizer.chat_template is None:
        raise bad_request("the model has no chat template: send the whole prompt to /v1/completions", "messages")
    return tokenizer.chat_template.render(
        [message.for_template() for message in body.messages or ()],
        tools=[tool.for_template() for tool in tools] or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _with_calls(
    sampling: SamplingParams, answer_format: AnswerFormat, body: ChatRequest, prompt: str
) -> SamplingParams:
    """`sampling` of an answer that may call tools: with markers in its text, ends of its own, and valid calls."""
    tools = body.offered_tools
    sampling = replace(sampling, kept_special_token_ids=answer_format.kept_token_ids(with_tools=bool(tools)))
    if not tools:
        return sampling
    sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids + answer_format.stop_token_ids)
    if not body.must_call and not any(tool.function.strict for tool in tools):
        return sampling
    functions = [tool.as_function(is_strict=body.must_call or tool.function.strict) for tool in tools]
    text = answer_format.grammar(prompt, functions, must_call=body.must_call, max_calls=body.max_calls)
    return replace(sampling, grammar=GrammarSpec("lark", text, "tools", names_tokens=True))


def _parser(service: Service, body: ChatRequest, prompt: str) -> AnswerParser | None:
    """Of one choice of the answer to `prompt`."""
    return service.answer_format.parser(
        prompt,
        frozenset(tool.function.name for tool in body.offered_tools),
        max_calls=body.max_calls,
        is_raw=not body.skip_special_tokens,
    )


def _new_call_id(length: int | None) -> str:
    return f"call_{uuid.uuid4().hex}" if length is None else uuid.uuid4().hex[:length]
