import asyncio
import json
import logging

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.request import FinishReason, Request
from engine.scheduling.plan import StepPlan
from engine.trace import SCHEMA, TraceWriter
from tests.engine.builders import build_core
from tests.helpers import generation

HEADER = {"model": "letters", "policy": "chunked"}


def plan(scheduled, start, *, blocks=2, new=(), **fields):
    tables = {request_id: tuple(range(blocks)) for request_id in {*scheduled, *fields.get("padding", ())}}
    return StepPlan(
        scheduled, start, tables, new={g.request_id: (g, g.prompt_token_ids) for g in new}, **fields
    )


def finished(request_id, prompt, output):
    request = Request(generation(request_id, prompt), arrival_time_s=0.5, finish_reason=FinishReason.LENGTH)
    request.token_ids += output
    return request


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def test_a_step_tells_what_each_request_computed(path):
    writer = TraceWriter.open(path, HEADER)
    a, b = generation("a", [7] * 8), generation("b", [8] * 3)
    writer.on_step(plan({"a": 4}, {"a": 0}, new=[a]), {}, 0.0, 1.0)
    writer.on_step(plan({"a": 4, "b": 3}, {"a": 4, "b": 0}, new=[b], padding={"b": 5}), {"a": 1, "b": 2}, 1.0, 2.5)
    writer.on_step(plan({"a": 1}, {"a": 8}, preempted=("b",)), {"a": 3}, 2.5, 3.0)
    writer.close()
    header, *steps = lines(path)
    assert header == {"trace": SCHEMA, "model": "letters", "policy": "chunked"}
    assert [(step["step"], step["begun_s"], step["ended_s"]) for step in steps] == [(0, 0, 1), (1, 1, 2.5), (2, 2.5, 3)]
    assert [step["requests"] for step in steps] == [
        [{"id": "a", "kind": "prefill", "start": 0, "tokens": 4, "blocks": 2}],
        [
            {"id": "a", "kind": "prefill", "start": 4, "tokens": 4, "blocks": 2, "sampled": True},
            {"id": "b", "kind": "prefill", "start": 0, "tokens": 3, "blocks": 2, "padding": 5, "sampled": True},
        ],
        [{"id": "a", "kind": "decode", "start": 8, "tokens": 1, "blocks": 2, "sampled": True}],
    ]
    assert [step.get("preempted") for step in steps] == [None, None, ["b"]]


def test_tokens_known_before_are_prefill_however_few(path):
    """After a preemption output tokens are computed again, here the last but one alone."""
    writer = TraceWriter.open(path, HEADER)
    writer.on_step(plan({"a": 1}, {"a": 3}, new=[generation("a", [7] * 3)]), {}, 0, 1)
    writer.on_step(plan({"a": 1}, {"a": 4}), {"a": 5}, 1, 2)
    writer.close()
    assert [step["requests"][0]["kind"] for step in lines(path)[1:]] == ["prefill", "decode"]


def test_rows_of_a_finished_request_are_a_seat(path):
    writer = TraceWriter.open(path, HEADER)
    both = [generation("a", [7] * 4), generation("b", [7] * 2)]
    padded = plan({"b": 1}, {"a": 4, "b": 2}, padding={"a": 1}, new=both)
    writer.on_step(padded, {"b": 1}, 0, 1)
    writer.on_finish(finished("a", [7] * 4, [1]), 1.0)
    writer.on_step(plan({"b": 1}, {"a": 4, "b": 3}, padding={"a": 1}), {"b": 1}, 1, 2)
    writer.close()
    _, before, finish, after = lines(path)
    assert [(row["id"], row["kind"]) for row in before["requests"]] == [("b", "decode"), ("a", "padding")]
    assert [(row["id"], row["kind"]) for row in after["requests"]] == [("b", "decode"), ("a", "seat")]
    assert finish == {
        "finish": "a", "s": 1.0, "arrival_s": 0.5, "reason": "length", "prompt": 4, "output": 1, "preemptions": 0,
    }  # fmt: skip


def test_what_a_step_computed_for_a_request_that_ended_meanwhile_was_dropped(path):
    writer = TraceWriter.open(path, HEADER)
    writer.on_step(plan({"a": 2}, {"a": 0}, new=[generation("a", [7] * 2)]), {"a": 1}, 0, 1)
    writer.on_finish(finished("a", [7] * 2, [1]), 1.0)
    writer.on_step(plan({"a": 1}, {"a": 2}), {}, 0.5, 1.5)
    writer.close()
    assert [row["kind"] for row in lines(path)[-1]["requests"]] == ["dropped"]


def test_nothing_that_was_written_or_generated_is_in_the_trace(path):
    writer = TraceWriter.open(path, HEADER)
    writer.on_step(plan({"a": 3}, {"a": 0}, new=[generation("a", [9871, 9872, 9873])]), {"a": 9874}, 0, 1)
    writer.on_finish(finished("a", [9871, 9872, 9873], [9874]), 1.0)
    writer.close()
    assert "987" not in path.read_text()


def test_a_file_that_exists_is_left_alone(path):
    for _ in range(3):
        TraceWriter.open(path, HEADER).close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["trace-2.jsonl", "trace-3.jsonl", "trace.jsonl"]


def test_a_place_that_cannot_be_written_is_a_configuration_error(path):
    with pytest.raises(ConfigError, match=r"trace: cannot write .*no/trace\.jsonl: No such file"):
        TraceWriter.open(path.parent / "no" / "trace.jsonl", HEADER)


class FullDisk:
    def __init__(self, room: int) -> None:
        self.room = room
        self.num_calls = 0

    def write(self, text: str) -> None:
        self.num_calls += 1
        self.room -= len(text)
        if self.room < 0:
            raise OSError("no space left")

    flush = close = lambda self: self.write("")


def test_a_full_disk_ends_the_trace_with_one_warning(caplog):
    disk = FullDisk(room=150)
    writer = TraceWriter(disk, HEADER)
    with caplog.at_level(logging.WARNING, "engine.trace"):
        for step in range(50):
            writer.on_step(plan({"a": 1}, {"a": step}), {"a": 0}, step, step + 1)
        writer.on_finish(finished("a", [1], [2]), 50.0)
        writer.close()
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == "the trace ends here, the engine goes on: no space left"
    assert disk.num_calls < 10


def test_a_trace_has_an_end(path, caplog):
    writer = TraceWriter(path.open("x"), HEADER, max_bytes=1000)
    for step in range(50):
        writer.on_step(plan({"a": 1}, {"a": step}), {"a": 0}, step, step + 1)
    assert path.stat().st_size <= 1000
    assert [line["step"] for line in lines(path)[1:]] == list(range(len(lines(path)) - 1))
    assert "reached 1000 bytes" in caplog.text


def test_a_reader_is_not_far_behind(path):
    writer = TraceWriter.open(path, HEADER)
    for step in range(3):
        writer.on_step(plan({"a": 1}, {"a": step}), {"a": 0}, 0.6 * step, 0.6 * step + 0.6)
    assert [line["step"] for line in lines(path)[1:]] == [0, 1]
    writer.close()


def test_an_engine_tells_its_steps_in_order_and_each_end_after_the_step_that_brought_it(path):
    core, _ = build_core(observer=TraceWriter.open(path, HEADER))
    core.add_request(generation("a", [7] * 6, 3))
    core.add_request(generation("b", [8] * 6, 2))
    while core.has_work:
        core.step()
    core.close()
    told = [line.get("finish") or [(row["id"], row["kind"]) for row in line["requests"]] for line in lines(path)[1:]]
    both = ("a", "b")
    prefill, decode = [(name, "prefill") for name in both], [(name, "decode") for name in both]
    assert told == [prefill, decode, "b", [("a", "decode")], "a"]


def test_a_random_model_in_service_writes_a_trace_that_is_whole_after_shutdown(path):
    """`trace` in the configuration, to the file: every prompt token computed once, every output token but the last."""

    async def serve() -> None:
        engine = AsyncEngine(EngineConfig(model="random:tiny", device="cpu", trace=path))
        await engine.start()
        async for _ in engine.generate(generation("a", [7] * 40, 5, {"ignore_eos": True})):
            pass
        await engine.shutdown()

    asyncio.run(serve())
    header, *steps, finish = lines(path)
    assert (header["trace"], header["policy"]) == (SCHEMA, "chunked")
    assert header["block_size"] * header["num_blocks"] > 45
    assert finish["finish"] == "a"
    rows = [row for step in steps for row in step["requests"]]
    assert sum(row["tokens"] for row in rows if row["kind"] == "prefill") == 40
    assert sum(row["tokens"] for row in rows if row["kind"] == "decode") == 4
