import pytest

from engine.errors import ContextTooLong, InvalidRequest, QueueFull, RequestError
from engine.request import FinishReason
from tests.engine.encoding.builders import build_encoder_core, embedding
from tests.helpers import generation


def test_a_step_packs_whole_texts_and_ends_them_all():
    core, runner, _ = build_encoder_core()
    for name, length in (("a", 4), ("b", 8), ("c", 5)):
        core.add_request(embedding(name, *range(20, 20 + length)))
    outputs = core.step()
    assert runner.steps == [["a", "c"]]
    assert [(o.request_id, o.finish_reason, list(o.vector_values())) for o in outputs] == [
        ("a", FinishReason.STOP, [86.0, 4.0]), ("c", FinishReason.STOP, [110.0, 5.0]),
    ]  # fmt: skip
    assert core.has_work
    assert [output.request_id for output in core.step()] == ["b"]
    assert not core.has_work
    assert core.wait_until_s is None


def test_one_client_s_many_texts_do_not_keep_another_s_waiting():
    core, runner, _ = build_encoder_core()
    for index in range(8):
        core.add_request(embedding(f"bulk {index}", 1, tenant="indexer"))
    core.add_request(embedding("query", 1, tenant="user"))
    core.step()
    assert runner.steps == [["bulk 0", "query", "bulk 1", "bulk 2"]]


def test_vectors_are_cut_before_they_are_brought_to_length_one():
    core, _, _ = build_encoder_core(normalize=True)
    core.add_request(embedding("a", 1, 2))
    core.add_request(embedding("b", 1, 2, dimensions=1))
    whole, cut = core.step()
    assert list(whole.vector_values()) == pytest.approx([3 / 13**0.5, 2 / 13**0.5])
    assert list(cut.vector_values()) == [1.0]


@pytest.mark.parametrize(
    ("request_", "error", "param", "text"),
    [
        (embedding("a"), InvalidRequest, "input", "empty"),
        (embedding("a", 100), InvalidRequest, "input", r"100 is not in \[0, 100\)"),
        (embedding("a", 1, -1), InvalidRequest, "input", r"-1 is not in \[0, 100\)"),
        (embedding("a", *[1] * 9), ContextTooLong, "input", "9 tokens; the model takes at most 8"),
        (embedding("a", 1, dimensions=3), InvalidRequest, "dimensions", "3 asked for; the model's vectors have 2"),
        (embedding("a", 1, dimensions=0), InvalidRequest, "dimensions", "0 asked for"),
        (embedding("a", 1, 2, token_type_ids=(0,)), InvalidRequest, None, "1 token types for 2 tokens"),
        (generation("a", [1]), InvalidRequest, "model", "generates none"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(request_, error, param, text):
    core, _, _ = build_encoder_core()
    with pytest.raises(error, match=text) as refusal:
        core.add_request(request_)
    assert refusal.value.param == param
    assert not core.has_work


def test_ids_are_unique_among_those_that_wait():
    core, _, _ = build_encoder_core()
    core.add_request(embedding("a", 1))
    with pytest.raises(InvalidRequest, match="in use"):
        core.add_request(embedding("a", 1))
    core.step()
    core.add_request(embedding("a", 1))


def test_the_queue_is_bounded():
    core, _, _ = build_encoder_core(max_num_waiting=1)
    core.add_request(embedding("a", 1))
    with pytest.raises(QueueFull):
        core.add_request(embedding("b", 1))
    core.step()
    core.add_request(embedding("b", 1))


def test_a_vector_that_is_not_finite_fails_alone():
    core, _, _ = build_encoder_core()
    core.add_request(embedding("a", 7))
    core.add_request(embedding("b", 1))
    failed, good = core.step()
    assert (failed.finish_reason, failed.vector) == (FinishReason.ERROR, b"")
    assert "not finite" in failed.error
    assert good.finish_reason is FinishReason.STOP


def test_aborts_and_drains_end_what_waits_exactly_once():
    core, runner, _ = build_encoder_core()
    for name in "abc":
        core.add_request(embedding(name, 1))
    core.abort("b")
    core.abort("no such request")
    assert [(o.request_id, o.finish_reason) for o in core.take_outputs()] == [("b", FinishReason.ABORT)]
    continuations = core.drain()
    assert [c.request for c in continuations] == [embedding("a", 1), embedding("c", 1)]
    assert [(o.request_id, o.finish_reason) for o in core.take_outputs()] == [
        ("a", FinishReason.ABORT), ("c", FinishReason.ABORT),
    ]  # fmt: skip
    assert not core.has_work
    assert runner.steps == []
    core.check_integrity()


def test_stats_tell_load_and_durations():
    core, _, clock = build_encoder_core()
    core.add_request(embedding("a", 1, 2, 3))
    core.add_request(embedding("b", *[1] * 8))
    stats = core.stats()
    assert (stats.task, stats.vector_size, stats.max_model_len) == ("embed", 2, 8)
    assert (stats.num_requests_waiting, stats.num_tokens_waiting) == (2, 11)
    clock.now_s = 3.0
    core.step()
    stats = core.stats()
    assert (stats.num_requests_waiting, stats.num_tokens_waiting, stats.num_steps) == (1, 8, 1)
    assert (stats.num_prompt_tokens, stats.num_finished) == (3, {"stop": 1})
    assert (stats.queue_time_s.total, stats.e2el_s.total) == (3.0, 3.0)


def test_a_model_that_generates_refuses_to_embed():
    from tests.engine.builders import build_core

    core, _ = build_core()
    with pytest.raises(RequestError, match="gives no embeddings"):
        core.add_request(embedding("a", 1))
