"""Grammars of calls: what they let through is read as valid calls, and what models write well passes."""

import random

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken

from engine.sampling.grammar.compiler import compile_grammar
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.grammar.vocabulary import Vocabulary
from engine.text.parsers.formats import REASONING_TAGS, TOOL_FORMATS, AnswerFormat
from engine.text.parsers.syntax import Function
from tests.engine.text import tiny
from tests.engine.text.parsers.answers import Answer, answer_of

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"enum": ["}]", 'a"🌶', None]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = [Function("f", SCHEMA), Function("get", EMPTY), Function("get_weather", EMPTY)]
SCHEMAS = {function.name: function.parameters for function in FUNCTIONS}
THINK = REASONING_TAGS["think"]
MAX_TOKENS = 600
CALLS = {                                          # of f and then of get_weather
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"x": 5, "y": null}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": {"x": 5, "y": null}}; {"name": "get_weather", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 5, "y": null}}, '
    '{"name": "get_weather", "arguments": {}}]',
    "mistral_v11": '[TOOL_CALLS]f[ARGS]{"x": 5, "y": null}[TOOL_CALLS]get_weather[ARGS]{}',
    "gemma4": '<|tool_call>call:f{"x": 5, "y": null}<tool_call|><|tool_call>call:get_weather{}<tool_call|>',
    "functiongemma": '<start_function_call>call:f{"x": 5, "y": null}<end_function_call>'
    "<start_function_call>call:get_weather{}<end_function_call>",
}


class Model:
    """A vocabulary in which markers are special tokens, or not, and grammars over it."""

    def __init__(self, name: str, *, is_special: bool, thinks: bool = False) -> None:
        pipeline = tiny.byte_level()
        tags = THINK if thinks else None
        markers = (*TOOL_FORMATS[name].markers, *(tags.tokens if tags else ())) if is_special else ()
        pipeline.add_special_tokens([AddedToken(marker, special=True) for marker in markers])
        self.tokenizer = tiny.wrap(pipeline)
        special = {marker: self.tokenizer.special_token_id(marker) for marker in markers}
        self.format = AnswerFormat(TOOL_FORMATS[name], tags, special)
        self.vocabulary = Vocabulary(self.tokenizer)

    def matcher(self, *, must_call=True, max_calls=None, prompt=""):
        text = self.format.grammar(prompt, FUNCTIONS, must_call=must_call, max_calls=max_calls)
        return compile_grammar(self.vocabulary, GrammarSpec("lark", text, "tools", names_tokens=True)).start()

    def accepts(self, text, **options):
        """Whether `text` is a whole output."""
        matcher = self.matcher(**options)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def write(self, seed, begun="", **options):
        """An output drawn from all that the grammar lets through; it ends as soon as it may, mostly."""
        matcher, draw = self.matcher(**options), random.Random(seed)
        ids = self.tokenizer.encode(begun, add_special_tokens=False)
        assert matcher.try_consume_tokens(ids) == len(ids)
        words = np.zeros(self.vocabulary.end_id // 32 + 1, np.int32)
        while not (matcher.is_accepting() and draw.random() < 0.7):
            assert len(ids) < MAX_TOKENS
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            allowed = [token_id for token_id in allowed.tolist() if token_id != self.vocabulary.end_id]
            ids.append(draw.choice(allowed))
            assert matcher.consume_token(ids[-1])
            if matcher.is_stopped():
                break
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def read(self, text, prompt="") -> Answer:
        parser = self.format.parser(prompt, SCHEMAS)
        assert parser is not None
        return answer_of(parser, text)


@pytest.fixture(scope="module", params=[(name, special) for name in CALLS for special in (False, True)], ids=str)
def named_model(request):
    name, is_special = request.param
    return name, Model(name, is_special=is_special)


def test_every_format_is_here():
    assert set(CALLS) == set(TOOL_FORMATS)


def test_calls_as_models_write_them_pass_and_are_read(named_model):
    name, model = named_model
    both = [("f", {"x": 5, "y": None}), ("get_weather", {})]
    assert model.read(CALLS[name]).parsed_calls == both
    assert model.accepts(CALLS[name])
    assert model.accepts(CALLS[name], must_call=False)
    assert not model.accepts(CALLS[name], max_calls=1)
    for wrong in (CALLS[name].replace("5", '"5"'), CALLS[name].replace("get_weather", "forget"), "Hello", ""):
        assert not model.accepts(wrong)


def test_whatever_a_grammar_lets_through_is_a_valid_call(named_model):
    _, model = named_model
    for seed in range(4):
        answer = model.read(model.write(seed))
        assert answer.calls and not answer.content
        for name, arguments in answer.parsed_calls:
            jsonschema.validate(arguments, SCHEMAS[name])


def test_content_is_free_until_a_call_begins(named_model):
    name, model = named_model
    assert model.accepts("Hello 🌶 {} <tool [TOOL", must_call=False)
    assert model.accepts("", must_call=False)
    assert not model.accepts(CALLS[name].replace("5", '"5"'), must_call=False)
    if name != "llama3":                           # whose calls have nothing in front
        assert model.accepts(f"Let me see. {CALLS[name]}", must_call=False)
        assert not model.accepts(f"Let me see. {CALLS[name]}".replace("5", '"5"'), must_call=False)


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("prompt, thought", [("", "<think>\nHm </th\n</think>\n\n"), ("<think>\n", "Hm\n</think>\n")])
def test_a_model_may_reason_before_it_must_call(prompt, thought, is_special):
    model = Model("hermes", is_special=is_special, thinks=True)
    text = thought + CALLS["hermes"]
    assert model.accepts(text, prompt=prompt)
    assert model.read(text, prompt).parsed_calls[0] == ("f", {"x": 5, "y": None})
    assert model.accepts(CALLS["hermes"], prompt=prompt) is (prompt == "")
    assert not model.accepts(thought + "Hello", prompt=prompt)


def test_calls_begin_with_what_triggers_them():
    for format in TOOL_FORMATS.values():
        syntax = format.syntax
        assert (syntax.begin or syntax.head).startswith(syntax.trigger or syntax.opening)
