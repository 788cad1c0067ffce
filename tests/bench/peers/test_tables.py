import pytest

from bench.peers.tables import goal_table, latency_table, markdown, ratio_table, report, speed_table, system_table
from bench.peers.turns import Failure, Turn
from bench.workloads import SETTINGS, build_workload
from tests.bench.peers.fakes import comparison, measurement

SYSTEMS = ["ours_http_float16", "transformers_static", "vllm_cpu_float32"]
OUTCOMES = [
    measurement("ours_http_float16", 60.0),
    measurement("transformers_static", 10.0),
    Failure(Turn(0, "vllm_cpu_float32", "burst 128"), "no wheel for this Python"),
    measurement("ours_http_float16", 62.0, repeat=1),
    measurement("transformers_static", 10.0, repeat=1, pss=3 * 2**30),
]


@pytest.fixture
def found():
    return comparison(
        OUTCOMES, SYSTEMS, reasons={"vllm_cpu_float32": "no wheel for this Python"},
        descriptions={"transformers_static": {"dtype": "float32", "num_threads": 2, "versions": {"torch": "2.13"}}},
        startups_s={"transformers_static": (12.34,)},
    )  # fmt: skip


def rows_of(table):
    """First cell -> the others."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return {line[0]: line[1:] for line in lines[2:]}


def test_columns_line_up():
    assert markdown(["a", "bb"], [["ccc", "d|e"]]) == "| a   | bb   |\n|-----|------|\n| ccc | d\\|e |"


def test_ratios_are_ours_over_the_peers(found):
    rows = rows_of(ratio_table(found))
    assert rows["transformers, padded static batches"] == ["burst 128", "6.10x (6.00, 6.20)"]
    assert rows["vLLM for processors, float32"] == ["burst 128", "–"]


def test_goals_say_what_was_reached_and_what_was_not_measured(found):
    table = goal_table(found)
    lines = [line for line in table.splitlines() if "transformers, padded" in line and "burst 128" in line]
    assert [line.rstrip("| ").split("|")[-1].strip() for line in lines] == [
        *["not measured"] * 3, "reached", *["not measured"] * 2,       # in process, then over HTTP
    ]
    assert table.endswith("1 of 1 measured goals reached")


def test_a_system_that_failed_keeps_its_row_with_the_reason(found):
    assert rows_of(speed_table(found))["vLLM for processors, float32"] == ["failed: no wheel for this Python"]
    assert rows_of(speed_table(found))["ours over HTTP, float16"] == ["61.0 (60.0, 62.0)"]
    assert rows_of(latency_table(found))["vLLM for processors, float32"] == ["failed: no wheel for this Python"]
    assert rows_of(system_table(found))["vLLM for processors, float32"][-1] == "no wheel for this Python"


def test_failed_requests_give_no_figure_but_a_reason():
    found = comparison([measurement("vllm_cpu_float32", 10.0, error="cut off")], ["vllm_cpu_float32"])
    assert rows_of(speed_table(found))["vLLM for processors, float32"] == ["failed: 1 of 1 requests failed: cut off"]
    assert "## Failures" in report(found)


def test_systems_tell_memory_start_up_and_versions(found):
    row = rows_of(system_table(found))["transformers, padded static batches"]
    assert row == ["12.3", "3.00", "float32", "num_threads 2", "torch 2.13", ""]


def test_other_workloads_are_told_of_servers_alone():
    chat = build_workload(SETTINGS["cpu"]["chat"], range(100), 0)
    found = comparison(
        [measurement("ours_http_int8", 20.0, workload=chat)], ["ours_http_int8", "vllm_cpu_float32"],
        others=("chat", "poisson"),
    )
    table = report(found).split("## Our servers on other workloads, once\n\n")[1]
    assert rows_of(table.split("##")[0])["ours over HTTP, int8"][:2] == ["chat", "20.0"]
