import json

import pytest
import yaml

from bench.metrics import Objective
from bench.policies.__main__ import main
from bench.policies.recommend import GOALS, Ranking, candidates, rank, ranking_text, yaml_of
from bench.policies.runs import Case
from bench.policies.simulated import SimulatedTarget
from bench.workloads import Workload, WorkloadRequest
from engine.config import SchedulerConfig
from engine.errors import ConfigError
from engine.scheduling.policies import policy_names
from tests.bench.policies.fakes import run

WORKLOAD = Workload("trace", 0, {}, tuple(WorkloadRequest(i, (1,) * 64, 16, 0.01 * i) for i in range(12)))


def test_every_policy_is_a_candidate_and_every_candidate_can_be_configured():
    found = candidates()
    assert {case.policy for case in found} == set(policy_names())
    assert len({case.label for case in found}) == len(found)
    for case in found:
        section = yaml.safe_load(yaml_of(case))["scheduler"]
        assert SchedulerConfig.model_validate(section).parameters == dict(case.parameters)


@pytest.mark.parametrize(
    ("goal", "best"), [("throughput", "fast"), ("p99_ttft", "prompt"), ("goodput", "fast")]
)
def test_goals_order_runs(goal, best):
    """A run of 100 tokens/s has its first token after half of its 10 s."""
    fast, prompt = run("fast", 200.0), run("prompt", 400.0)
    fast, prompt = (fast, prompt) if goal == "p99_ttft" else (run("fast", 500.0), prompt)
    assert min([fast, prompt], key=GOALS[goal].key).case.policy == best


def test_a_run_that_failed_a_request_comes_last():
    runs = [run("fails", 900.0, failed=1), run("serves", 100.0)]
    assert min(runs, key=GOALS["throughput"].key).case.policy == "serves"


def test_continuous_batching_is_recommended_over_static_for_steady_traffic():
    cases = [Case("static", {"batch_size": 4}), Case("chunked")]
    target = SimulatedTarget("opt-13b", "sim:a100-40gb")
    ranking = rank(target, WORKLOAD, cases, GOALS["p99_ttft"], Objective(1.0, 1.0))
    assert [ran.case.policy for ran in ranking.runs] == ["chunked", "static"]
    text = ranking_text(ranking, GOALS["p99_ttft"], top=5)
    assert text.endswith("1 are within 1% of the best; of these chunked has the shortest TPOT p99. For the YAML, under "
                         "args:\n\nscheduler:\n  policy: chunked")  # fmt: skip


def test_of_cases_too_close_to_tell_apart_the_shortest_tpot_is_recommended():
    """TPOT is half a run's time over 199 tokens; TTFT the other half."""
    slower, faster, worse = run("slower", 100.0), run("faster", 100.5), run("worse", 90.0)
    ranking = Ranking((slower, faster, worse), ())
    assert ranking.equals(GOALS["throughput"]) == [slower, faster]
    assert ranking.recommended(GOALS["throughput"]) is faster


class Cramped(SimulatedTarget):
    def run(self, case, workload, objective, *, repeat=0):
        raise ConfigError("model: does not fit")


def test_what_cannot_run_is_listed_with_the_reason():
    ranking = rank(Cramped("opt-13b", "sim:l4"), WORKLOAD, [Case("orca")], GOALS["goodput"], Objective(1.0, 1.0))
    assert "orca cannot run: model: does not fit" in ranking_text(ranking, GOALS["goodput"], top=5)


def test_the_command_ranks_recorded_traffic(tmp_path, capsys):
    trace = tmp_path / "mine.jsonl"
    rows = [{"t": 0.1 * i, "prompt_len": 50, "output_len": 8} for i in range(20)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main([
        "--recommend", "--trace", str(trace), "--device", "sim:h100", "--model", "llama-8b", "--objective", "goodput",
        "--only", "static", "chunked",
    ])  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.startswith("20 requests over 2 s, llama-8b on sim:h100, by goodput")
    assert "scheduler:\n  policy: " in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "sim:h100"], "needs --trace"),
        (["--trace", "x.jsonl"], "--device sim:"),
        (["--trace", "x.jsonl", "--device", "sim:h100"], "No such file.*x.jsonl"),
    ],
)
def test_the_command_says_what_it_lacks(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["--recommend", *arguments])


def test_an_unknown_device_is_told_once(tmp_path):
    trace = tmp_path / "mine.jsonl"
    trace.write_text('{"t": 0, "prompt_len": 5, "output_len": 5}\n')
    with pytest.raises(SystemExit, match="no simulated device 'h10': did you mean 'h100'"):
        main(["--recommend", "--trace", str(trace), "--device", "sim:h10", "--model", "llama-8b"])
