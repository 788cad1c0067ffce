import json

import pytest

from bench.trace import TraceRow, read_trace


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_own_columns(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"t": 5.5, "prompt_len": 3, "output_len": 4}\n')
    assert read_trace(path) == [TraceRow(0.0, 3, 4)]


def test_azure_columns_as_jsonl_and_as_the_csv_they_are_published_in(tmp_path):
    jsonl = write(
        tmp_path,
        "a.jsonl",
        '{"TIMESTAMP": "2023-11-16 18:15:46.6805900", "ContextTokens": 374, "GeneratedTokens": 44}\n'
        '{"TIMESTAMP": "2023-11-16 18:15:50.6805900", "ContextTokens": 396, "GeneratedTokens": 109}\n',
    )
    csv = write(
        tmp_path,
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.6805900,396,109\n",
    )
    rows = read_trace(jsonl)
    assert rows == read_trace(csv)
    assert [(row.prompt_len, row.output_len) for row in rows] == [(374, 44), (396, 109)]
    assert [row.arrival_s for row in rows] == pytest.approx([0.0, 4.0])


def test_azure_dates_with_a_time_zone(tmp_path):
    path = write(
        tmp_path,
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.5+00:00,1,1\n"
        "2024-05-10 02:00:01.5+02:00,1,1\n",
    )
    assert [row.arrival_s for row in read_trace(path)] == pytest.approx([0.0, 1.0])


def test_mooncake_columns_in_milliseconds_with_block_hashes(tmp_path):
    path = write(
        tmp_path, "a.jsonl", '{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
    )
    assert read_trace(path) == [TraceRow(0.0, 600, 52, (46, 47))]


def test_rows_are_sorted_by_arrival_and_start_at_zero(tmp_path):
    path = write(
        tmp_path,
        "a.jsonl",
        '{"t": 9, "prompt_len": 2, "output_len": 1}\n\n{"t": 4, "prompt_len": 1, "output_len": 1}\n',
    )
    assert [(row.arrival_s, row.prompt_len) for row in read_trace(path)] == [(0.0, 1), (5.0, 2)]


def test_unknown_columns_are_named_with_their_line(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"t": 4, "prompt_len": 1, "output_len": 1}\n{"when": 4, "prompt_len": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: columns are when, prompt_len; known are: t, prompt_len"):
        read_trace(path)


def test_lengths_below_one_are_refused(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"t": 4, "prompt_len": 1, "output_len": 0}\n')
    with pytest.raises(ValueError, match="lengths are 1 and 0"):
        read_trace(path)


def test_an_empty_trace_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no requests"):
        read_trace(write(tmp_path, "a.jsonl", ""))


def test_a_trace_of_an_engines_steps_holds_the_requests_that_ended_by_themselves(tmp_path):
    path = tmp_path / "steps.jsonl"
    lines = [
        {"trace": "conveyor-trace/1", "policy": "chunked"},
        {"step": 0, "begun_s": 5.0, "ended_s": 5.1, "requests": []},
        {"finish": "b", "s": 6.0, "arrival_s": 5.5, "reason": "stop", "prompt": 7, "output": 2, "preemptions": 0},
        {"finish": "a", "s": 7.0, "arrival_s": 5.0, "reason": "length", "prompt": 9, "output": 4, "preemptions": 1},
        {"finish": "c", "s": 7.0, "arrival_s": 5.2, "reason": "abort", "prompt": 9, "output": 0, "preemptions": 0},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trace(path) == [TraceRow(0.0, 9, 4), TraceRow(0.5, 7, 2)]
