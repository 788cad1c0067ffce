import argparse

import pytest

from bench.options import workload_options, workload_specs
from bench.workloads import SETTINGS, Trace


def specs(*arguments):
    return workload_specs(argparse.ArgumentParser(parents=[workload_options()]).parse_args(arguments))


def test_the_setting_gives_the_parameters():
    assert specs("--workload", "burst", "single") == [SETTINGS["cpu"]["burst"], SETTINGS["cpu"]["single"]]
    assert specs("--setting", "seed") == [SETTINGS["seed"]["burst"]]


def test_parameters_of_the_command_line_go_to_the_workloads_that_have_them():
    burst, single = specs("--workload", "burst", "single", "--cap", "384", "--prompt-len", "32")
    assert (burst.cap, burst.prompt_len, single.prompt_len) == (384, 32, 32)


def test_a_parameter_that_no_workload_has_is_refused():
    with pytest.raises(SystemExit, match="no chosen workload has a parameter rate"):
        specs("--workload", "burst", "--rate", "2")


def test_a_trace_needs_its_file():
    with pytest.raises(SystemExit, match="--trace-file"):
        specs("--workload", "trace")
    assert specs("--workload", "trace", "--trace-file", "a.jsonl") == [Trace("a.jsonl")]
