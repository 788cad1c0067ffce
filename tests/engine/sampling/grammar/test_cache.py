import threading
from collections import Counter

import llguidance
import pytest

from engine.errors import InvalidRequest, QueueFull
from engine.sampling.grammar import cache, compiler
from engine.sampling.grammar.checks import GrammarError
from engine.sampling.grammar.compiler import compile_grammar
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.grammar.state import GrammarState
from engine.sampling.grammar.vocabulary import Vocabulary
from tests.engine.sampling.grammar.tokenizers import BYTE_LEVEL, follow, grammars, without_rule

SPEC = GrammarSpec("regex", "[0-9]+", "structured_outputs.regex")


class Compiler:
    """Counts what is compiled, and can be held up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, vocabulary, spec):
        self.counts[spec.text] += 1
        self.begun.release()
        assert self.gate.wait(30)
        return compile_grammar(vocabulary, spec)


@pytest.fixture
def counted(monkeypatch):
    counted = Compiler()
    monkeypatch.setattr(cache, "compile_grammar", counted)
    yield counted
    counted.gate.set()


@pytest.fixture
def build():
    built = []

    def build(*args, **config):
        built.append(grammars(*args, **config))
        return built[-1]

    yield build
    for one in built:
        one.close()


def test_requests_at_the_same_time_share_one_compile(counted, build):
    ours = build()
    counted.gate.clear()
    futures = [ours.compiled(GrammarSpec("regex", "[0-9]+", param)) for param in ("a", "b", None)]
    counted.gate.set()
    assert len({id(future.result(30)) for future in futures}) == 1
    assert counted.counts == {"[0-9]+": 1}


def test_a_kept_grammar_is_there_at_once(counted, build):
    ours = build()
    grammar = ours.get(SPEC)
    assert ours.compiled(SPEC).done() and ours.get(SPEC) is grammar
    assert counted.counts == {"[0-9]+": 1}


def test_the_least_recently_used_goes_first(counted, build):
    one, two, three = (GrammarSpec("regex", letter * 10) for letter in "abc")
    ours = build(cache_bytes=2 * (2**16 + 5000))
    for spec in (one, two, one, three):            # two is the oldest when three comes
        ours.get(spec)
    for spec in (one, three, two):
        ours.get(spec)
    assert counted.counts == {one.text: 1, two.text: 2, three.text: 1}


def test_what_a_request_holds_is_not_compiled_again(counted, build):
    ours = build(cache_bytes=0)
    held = ours.get(SPEC)
    assert ours.get(SPEC) is held
    del held
    ours.get(SPEC)
    assert counted.counts == {SPEC.text: 2}


def test_a_grammar_that_has_reached_a_limit_is_compiled_anew(monkeypatch, build):
    monkeypatch.setattr(compiler, "_limits", lambda: llguidance.LLParserLimits(max_lexer_states=40))
    ours = build()
    spec = GrammarSpec("regex", "[a-z]{0,500}")
    grammar = ours.get(spec)
    state = GrammarState(grammar, (1,), BYTE_LEVEL.vocab_size)
    assert not follow(state, "a" * 100) and state.error is not None and "complex" in state.error
    assert grammar.is_spent
    again = ours.get(spec)
    assert again is not grammar and follow(GrammarState(again, (1,), BYTE_LEVEL.vocab_size), "a" * 5)
    assert ours.get(spec) is again


def test_refusals_name_the_field_of_each_request(counted, build):
    ours = build()
    for param in ("guided_regex", "structured_outputs.regex"):
        with pytest.raises(InvalidRequest, match=f"^{param}: ") as caught:
            ours.get(GrammarSpec("regex", "([", param))
        assert caught.value.param == param


def test_a_grammar_that_is_too_slow_is_refused_and_the_next_one_served(counted, build):
    ours = build(compile_timeout_s=0.001)
    counted.gate.clear()
    future = ours.compiled(SPEC)
    counted.begun.acquire()
    refusal = ours.refusal(SPEC, future, TimeoutError())
    assert isinstance(refusal, InvalidRequest) and "0.001 s" in str(refusal) and refusal.param == SPEC.param
    counted.gate.set()
    assert ours.compiled(GrammarSpec("regex", "b")).result(30)


def test_those_who_wait_behind_slow_grammars_are_asked_to_come_again(counted, build):
    ours = build()
    ours.compiled(SPEC).result(30)
    counted.gate.clear()
    for text in ("a", "b"):                        # one for each thread
        ours.compiled(GrammarSpec("regex", text))
    counted.begun.acquire()
    counted.begun.acquire()
    counted.begun.acquire()
    waiting = ours.compiled(GrammarSpec("regex", "c"))
    assert isinstance(ours.refusal(SPEC, waiting, TimeoutError()), QueueFull)
    assert waiting.cancelled()
    counted.gate.set()
    assert ours.get(GrammarSpec("regex", "c"))


def test_limits_are_those_of_the_configuration(build):
    ours = build(max_bytes=10, max_depth=2)
    with pytest.raises(InvalidRequest, match="at most 10"):
        ours.get(GrammarSpec("regex", "a" * 11))
    with pytest.raises(InvalidRequest, match="2 levels"):
        ours.get(GrammarSpec("json_schema", "[[[]]]"))


def test_a_tokenizer_that_tells_no_bytes_has_no_grammars(build):
    with pytest.raises(InvalidRequest, match="bytes of a token"):
        build(without_rule()).get(SPEC)


def test_a_failed_compile_is_an_error_of_the_grammar(build):
    assert isinstance(build().compiled(GrammarSpec("lark", "")).exception(30), GrammarError)


def test_what_all_grammars_share_is_built_once_and_not_before_it_is_asked_for(monkeypatch, build):
    built = []
    monkeypatch.setattr(cache, "Vocabulary", lambda tokenizer: built.append(tokenizer) or Vocabulary(tokenizer))
    ours = build()
    assert not built and not ours.is_prepared
    assert ours.prepare() and ours.is_prepared
    assert not ours.prepare()
    assert ours.get(SPEC) and ours.get(GrammarSpec("regex", "[a-z]+"))
    assert len(built) == 1


def test_the_first_grammar_builds_what_nobody_prepared(build):
    ours = build()
    assert ours.get(SPEC) and ours.is_prepared


def test_nothing_is_built_for_a_tokenizer_that_tells_no_bytes(build):
    ours = build(without_rule())
    assert ours.is_prepared and not ours.prepare()
