from pathlib import Path

import pytest

from bench.peers.options import compared_workloads, other_workloads, parser, settings_of
from engine.api import ResolvedModel

VOCABULARY = range(100)


def workloads(*arguments, repeat=0):
    return compared_workloads(parser().parse_args(arguments), VOCABULARY, repeat)


def test_by_default_both_bursts_and_a_single_stream():
    found = workloads()
    assert list(found) == ["burst 128", "burst 384", "single"]
    assert [w.parameters.get("cap") for w in found.values()] == [128, 384, None]
    assert len(found["burst 384"].requests) == 48


def test_caps_workloads_and_sizes_can_be_chosen():
    assert list(workloads("--caps", "8", "32", "--workloads", "burst")) == ["burst 8", "burst 32"]
    assert [len(w.requests) for w in workloads("--num-requests", "4").values()] == [4, 4, 4]
    assert list(workloads("--setting", "seed")) == ["burst 128", "burst 512", "single"]


def test_no_prompt_comes_twice_in_a_run():
    """A prefix cache would answer the second."""
    args = parser().parse_args([])
    every = [w for repeat in range(3) for w in compared_workloads(args, VOCABULARY, repeat).values()]
    prompts = [r.prompt_token_ids for w in [*every, *other_workloads(args, VOCABULARY).values()] for r in w.requests]
    heads = [prompt[:16] for prompt in prompts if len(prompt) >= 128 or len(prompt) == 64]
    of_chat = 12                                              # its turns share a system prompt, which is its point
    assert len(heads) - len(set(heads)) <= of_chat


def test_a_seed_gives_the_same_work_and_another_seed_other_work():
    one, same, other = (workloads("--seed", seed)["burst 128"].fingerprint for seed in ("1", "1", "2"))
    assert one == same != other


def test_the_other_workloads_are_three_or_none():
    assert list(other_workloads(parser().parse_args([]), VOCABULARY)) == ["poisson", "long_short", "chat"]
    few = other_workloads(parser().parse_args(["--num-requests", "2"]), VOCABULARY)
    assert [len(workload.requests) for workload in few.values()] == [2, 2, 2]
    assert other_workloads(parser().parse_args(["--no-others"]), VOCABULARY) == {}


@pytest.mark.parametrize(("setting", "max_len"), [("cpu", 256), ("seed", 768)])      # 64 + 8 and 512 + 128 tokens
def test_systems_are_told_the_longest_request_in_whole_blocks(monkeypatch, setting, max_len):
    model = ResolvedModel("folder", Path("/nowhere"), "m")
    monkeypatch.setattr("bench.peers.options.resolve_model", lambda name: model)
    args = parser().parse_args(["--setting", setting, "--caps", "8", "--num-threads", "3"])
    settings = settings_of(args, compared_workloads(args, VOCABULARY, 0).values())
    assert (settings.max_len, settings.num_threads, settings.file_type) == (max_len, 3, None)
