import json

import pytest

from bench.step_trace import Bar, Step, StepRow, StepTrace, read_step_trace, slot_bars

HEADER = {"trace": "conveyor-trace/1", "policy": "orca", "block_size": 4, "num_blocks": 8}


def step(index, *rows, preempted=()):
    return Step(index, index + 1, rows, preempted)


def row(name, kind="decode", tokens=1, *, padding=0):
    return StepRow(name, kind, 0, tokens, 1, padding)


def trace(*steps, ends=()):
    return StepTrace(HEADER, steps, dict.fromkeys(ends, 0.0))


def test_a_trace_is_read_back(tmp_path):
    lines = [
        HEADER,
        {"step": 0, "begun_s": 0.0, "ended_s": 1.5, "preempted": ["b"], "requests": [
            {"id": "a", "kind": "prefill", "start": 0, "tokens": 3, "blocks": 1, "padding": 2, "sampled": True},
            {"id": "c", "kind": "seat", "start": 7, "tokens": 0, "blocks": 2, "padding": 1},
        ]},
        {"finish": "a", "s": 1.5, "arrival_s": 0.0, "reason": "length", "prompt": 3, "output": 1, "preemptions": 0},
    ]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 1, "beg')
    found = read_step_trace(path)
    rows = (StepRow("a", "prefill", 0, 3, 1, 2, True), StepRow("c", "seat", 7, 0, 2, 1))
    assert found.steps == (Step(0.0, 1.5, rows, ("b",)),)
    assert found.finished_s == {"a": 1.5}
    assert found.num_requests == 2
    assert [found.steps[0].num_rows(kind) for kind in ("prefill", "decode", "idle")] == [3, 0, 3]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"t": 0, "prompt_len": 3, "output_len": 4}\n')
    with pytest.raises(ValueError, match="no step trace"):
        read_step_trace(path)


def test_a_slot_is_taken_by_the_next_request_when_its_holder_ends():
    found = slot_bars(trace(
        step(0, row("a", "prefill", 4), row("b", "prefill", 4)),
        step(1, row("a"), row("b")),
        step(2, row("b"), row("c", "prefill", 4)),
        ends="abc",
    ))  # fmt: skip
    assert found == [
        Bar(0, 0, 1, "a", "prefill"), Bar(0, 1, 2, "a", "decode", ends=True),
        Bar(1, 0, 1, "b", "prefill"), Bar(1, 1, 3, "b", "decode", ends=True),
        Bar(0, 2, 3, "c", "prefill", ends=True),
    ]  # fmt: skip


def test_a_seat_follows_the_end():
    found = slot_bars(trace(
        step(0, row("a", "prefill", 4), row("b", "prefill", 4)),
        step(1, row("b"), row("a", "seat", 0, padding=1)),
        step(2, row("b"), row("a", "seat", 0, padding=1)),
        ends="ab",
    ))  # fmt: skip
    assert [bar for bar in found if bar.request_id == "a"] == [
        Bar(0, 0, 1, "a", "prefill", ends=True), Bar(0, 1, 3, "a", "seat"),
    ]  # fmt: skip


def test_a_request_that_computes_nothing_keeps_its_slot():
    found = slot_bars(trace(step(0, row("a")), step(1, row("b", "prefill", 4)), step(2, row("a"), row("b"))))
    assert [(bar.slot, bar.first, bar.end, bar.kind) for bar in found if bar.request_id == "a"] == [
        (0, 0, 1, "decode"), (0, 1, 2, "paused"), (0, 2, 3, "decode"),
    ]  # fmt: skip
    assert {bar.slot for bar in found if bar.request_id == "b"} == {1}


def test_a_preempted_request_leaves_its_slot_and_may_come_back_to_another():
    found = slot_bars(trace(
        step(0, row("a"), row("b")),
        step(1, row("a"), preempted=("b",)),
        step(2, row("a"), row("c", "prefill", 2), row("b", "prefill", 5)),
        ends="b",
    ))  # fmt: skip
    assert [bar for bar in found if bar.request_id == "b"] == [
        Bar(1, 0, 1, "b", "decode", is_preempted=True), Bar(2, 2, 3, "b", "prefill", ends=True),
    ]  # fmt: skip
