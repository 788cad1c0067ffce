"""The runner alone, on a tiny model: what a plan may ask of it beside ordinary steps."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from engine.kv_cache.tensors import KVCacheTensors
from engine.runner import ModelRunner
from engine.scheduling.plan import StepPlan
from tests.engine.model.driver import load
from tests.engine.model_core import GRAPH_BATCH_SIZES
from tests.helpers import ManualClock, generation
from tests.helpers_models import prompt, rand_config, save_checkpoint

BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 8, 32, 128
TABLES = {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7), "c": (8, 9, 10, 11)}
LENGTHS = {"a": 5, "b": 9, "c": 12}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rand")
    save_checkpoint(folder, rand_config())
    return cache(lambda dtype: load(folder, dtype))


@pytest.fixture(scope="module")
def model(models):
    return models("float32")


@pytest.fixture
def runner(model):
    return build_runner(model)


def build_runner(model, **options) -> ModelRunner:
    kv = KVCacheTensors.allocate(model.spec, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu")
    for tensor in (*kv.keys, *kv.values):
        tensor.fill_(float("nan"))
    return ModelRunner(
        model.decoder, kv, max_num_seqs=8, max_model_len=CONTEXT, eos_token_ids=frozenset(),
        vocab_size=model.spec.vocab_size, device=torch.device("cpu"), clock=ManualClock(), **options,
    )  # fmt: skip


def prefill(sampling=None, **changes) -> StepPlan:
    requests = {name: generation(name, prompt(length), 16, sampling) for name, length in LENGTHS.items()}
    plan = StepPlan(
        dict(LENGTHS), dict.fromkeys(LENGTHS, 0), TABLES, sampling=tuple(LENGTHS),
        new={name: (request, request.prompt_token_ids) for name, request in requests.items()},
    )  # fmt: skip
    return replace(plan, **changes)


def decode(number: int, **changes) -> StepPlan:
    """The step in which each request computes its output token `number`, counted from 0, and samples the next."""
    starts = {name: length + number for name, length in LENGTHS.items()}
    return replace(StepPlan(dict.fromkeys(LENGTHS, 1), starts, TABLES, sampling=tuple(LENGTHS)), **changes)


def in_turn(runner: ModelRunner, plans) -> list[dict[str, int]]:
    return [dict(runner.execute(plan).sampled) for plan in plans]


def one_ahead(runner: ModelRunner, plans) -> list[dict[str, int]]:
    """Each step submitted before the one before it is awaited."""
    sampled, last = [], None
    for plan in plans:
        pending = runner.submit(plan)
        if last is not None:
            sampled.append(dict(last.result().sampled))
        last = pending
    return [*sampled, dict(last.result().sampled)]


PLANS = [prefill(), *map(decode, range(6))]


def test_a_step_finds_the_tokens_that_the_host_does_not_know(model):
    assert one_ahead(build_runner(model), PLANS) == in_turn(build_runner(model), PLANS)


def test_penalties_are_those_of_the_tokens_that_were_still_under_way(model):
    sampling = {"repetition_penalty": 1.5, "frequency_penalty": 0.7}
    plans = [prefill(sampling), *PLANS[1:]]
    penalised = in_turn(build_runner(model), plans)
    assert one_ahead(build_runner(model), plans) == penalised != in_turn(build_runner(model), PLANS)


def test_log_probabilities_outlive_the_step_after_theirs(model):
    plans = [prefill({"logprobs": 2}), *PLANS[1:3]]
    runner = build_runner(model, graph_batch_sizes=GRAPH_BATCH_SIZES)
    runner.warm_up()
    submitted = [runner.submit(plan) for plan in plans[:2]]
    first = submitted[0].result()
    submitted.append(runner.submit(plans[2]))
    expected = build_runner(model)
    for step, plan in zip(submitted, plans, strict=True):
        assert step.result().logprobs == expected.execute(plan).logprobs
    assert submitted[0].result() is first


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_replayed_step_equals_an_eager_one_to_the_bit(models, dtype, monkeypatch):
    model = models(dtype)
    runner = build_runner(model, graph_batch_sizes=(4,))
    runner.warm_up()
    replayed = []
    replay = runner._graphs.replay
    monkeypatch.setattr(runner._graphs, "replay", lambda size: replayed.append(size) or replay(size))
    plans = [prefill({"logprobs": 3}), *PLANS[1:]]
    eager = build_runner(model)
    for plan in plans:
        assert runner.execute(plan) == replace(eager.execute(plan))
    assert replayed == [4] * 6


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_step_of_any_kind_equals_an_eager_one_to_the_bit_on_its_tape(models, dtype, monkeypatch):
    """Prompts, a chunk beside decodes, padding, fewer requests than before: of 8 rows each; whole prompts: of 32."""
    model, ran = models(dtype), []
    runner, eager = build_runner(model, tape_row_counts=(8, 16, 32)), build_runner(model)
    runner.warm_up()
    run = runner._tapes.run
    monkeypatch.setattr(runner._tapes, "run", lambda size, compute: ran.append(size) or run(size, compute))
    whole = prefill({"logprobs": 3, "prompt_logprobs": 1})

    def part(scheduled, starts, **changes) -> StepPlan:
        return StepPlan(scheduled, starts, {name: TABLES[name] for name in scheduled}, **changes)

    parts = [
        part({"a": 5, "b": 2}, {"a": 0, "b": 0}, sampling=("a",), new=whole.new),
        part({"a": 1, "b": 7}, {"a": 5, "b": 2}, sampling=("a", "b")),
        part({"a": 1, "b": 1}, {"a": 6, "b": 9}, sampling=("a", "b"), padding={"a": 3, "b": 1}),
        part({"c": 8}, {"c": 0}),
        part({"b": 1, "c": 4}, {"b": 10, "c": 8}, sampling=("b", "c"), finished=("a",)),
        part({"b": 1}, {"b": 11}, sampling=("b",)),
    ]
    for plan in (*parts, StepPlan({}, {}, {}, finished=("b", "c")), whole, *PLANS[1:]):
        assert runner.execute(plan) == eager.execute(plan)
    assert ran == [8] * 6 + [32] + [8] * 6


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_prepared_ahead_computes_the_same(models, dtype, monkeypatch):
    model = models(dtype)
    runner = build_runner(model, graph_batch_sizes=(1, 2, 3), tape_row_counts=(8, 16, 32))
    eager = build_runner(model)
    assert not runner.prepare()                                        # before it is known that it can be
    runner.warm_up()
    count = 0
    while runner.prepare():
        count += 1
    assert count == 3                                                  # warming up has seen the others
    monkeypatch.setattr("kernels.cpu.recording.record", None)          # nothing more is recorded
    for plan in PLANS:
        assert runner.execute(plan) == eager.execute(plan)


def test_a_step_larger_than_every_tape_is_computed_all_the_same(models):
    runner, eager = build_runner(models("float16"), tape_row_counts=(8, 16)), build_runner(models("float16"))
    assert runner.execute(prefill()) == eager.execute(prefill())


def test_logits_of_prompts_take_no_address_space_for_every_row_of_a_step(models, monkeypatch):
    runner, drawn_from = build_runner(models("float16"), tape_row_counts=(32,)), []
    sample = runner._sample
    monkeypatch.setattr(runner, "_sample", lambda rows, logits: drawn_from.append(logits) or sample(rows, logits))
    runner.execute(prefill())
    workspace = runner._tapes._workspace
    assert workspace._buffers and not workspace.holds(drawn_from[0].numpy())


def test_steps_with_a_chunk_a_silent_row_or_padding_are_not_replayed(model, monkeypatch):
    runner = build_runner(model, graph_batch_sizes=(4,))
    runner.warm_up()
    monkeypatch.setattr(runner._graphs, "replay", lambda size: pytest.fail("a graph for another kind of step"))
    in_turn(runner, [prefill()])
    in_turn(runner, [decode(0, sampling=("a", "b")), decode(0, padding={"a": 1})])


def test_a_step_that_samples_more_than_stay_on_the_device_is_known_at_once(model, monkeypatch):
    monkeypatch.setattr("engine.runner._MIN_SAMPLES", 2)
    runner = build_runner(model)
    runner._sampled = runner._sampled[:2]
    assert one_ahead(runner, PLANS) == in_turn(build_runner(model), PLANS)


@pytest.mark.parametrize("submit", [in_turn, one_ahead])
def test_a_row_without_a_distribution_fails_alone(model, submit):
    runner, healthy = build_runner(model), build_runner(model)
    runner.execute(prefill())
    healthy.execute(prefill())
    runner._kv.values[0][TABLES["b"][0]] = float("nan")
    first, second = runner.submit(decode(0)), None
    if submit is one_ahead:
        second = runner.submit(decode(1))                       # built on a token that is none
    assert list(first.result().errors) == ["b"]
    assert first.result().sampled == {
        name: token for name, token in healthy.execute(decode(0)).sampled.items() if name != "b"
    }
    if second is not None:
        assert {"a", "c"} <= second.result().sampled.keys()


PADDED = [
    prefill(padding={"a": 7, "b": 3}),                          # prompts padded to the longest
    decode(0), decode(1),
    StepPlan(                                                   # `b` has ended and keeps its seat
        {"a": 1, "c": 1}, {"a": 7, "b": 11, "c": 14}, TABLES, sampling=("a", "c"), padding={"b": 1}
    ),
]  # fmt: skip


def test_padding_rows_are_computed_and_change_no_token(model, monkeypatch):
    runner, num_rows = build_runner(model), []
    forward = model.decoder.forward

    def counted(batch, kv):
        num_rows.append(batch.input_ids.numel())
        return forward(batch, kv)

    plain = [replace(plan, padding={}) for plan in PADDED]
    expected = [build_runner(model), [prefill({"logprobs": 0}), *plain[1:]]]
    wanted = [expected[0].execute(plan) for plan in expected[1]]
    monkeypatch.setattr(model.decoder, "forward", counted)
    found = [runner.execute(plan) for plan in [replace(expected[1][0], padding=PADDED[0].padding), *PADDED[1:]]]
    assert num_rows == [3 * 12, 3, 3, 3]
    assert [result.sampled for result in found] == [result.sampled for result in wanted]
    assert [result.logprobs for result in found] == [result.logprobs for result in wanted]


def test_a_result_for_a_request_that_left_changes_nothing_for_its_successor(model):
    runner = build_runner(model)
    runner.execute(prefill())
    pending = runner.submit(decode(0))
    successor = generation("a", prompt(6, seed=9), 16)
    plan = StepPlan(
        {"a": 6}, {"a": 0}, {"a": (20, 21)}, sampling=("a",), new={"a": (successor, successor.prompt_token_ids)},
        finished=("a", "b", "c"),
    )  # fmt: skip
    after = runner.submit(plan)
    pending.result()
    alone = build_runner(model).execute(plan)
    assert after.result().sampled == alone.sampled
