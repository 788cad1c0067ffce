"""LO-06: which tokens end an answer, from the files of a model to what its client is told."""

from pathlib import Path
from typing import Any

import pytest

from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.outputs import RequestOutput
from engine.request import FinishReason
from engine.text.tokenizer import load_tokenizer
from tests.ends_model import OTHER, TEXT, write_ends_gguf, write_ends_model
from tests.helpers import generation
from tests.tiny_tokenizer import EOS

MAX_TOKENS = 12
LONG = pytest.mark.exhaustive
BOTH = {"tokenizer": OTHER, "config": OTHER, "generation": [OTHER, EOS]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))


def answers(model: Path, *samplings: dict[str, Any]) -> list[RequestOutput]:
    """One after the other, by one engine."""
    kv_cache: Any = {"capacity_tokens": 256}
    core = build_core(EngineConfig(model=str(model), device="cpu", dtype="float32", num_threads=1, kv_cache=kv_cache))
    return [answer(core, load_tokenizer(model).encode("sayU"), sampling) for sampling in samplings]


def answer(core: EngineCore, prompt: list[int], sampling: dict[str, Any]) -> RequestOutput:
    core.add_request(generation("a", prompt, MAX_TOKENS, sampling))
    merged: RequestOutput | None = None
    while core.has_work:
        for output in core.step():
            merged = output if merged is None else merged.then(output)
    assert merged is not None
    return merged


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(BOTH, id="a list of both"),
        pytest.param({"tokenizer": EOS, "config": OTHER, "generation": OTHER}, id="only the tokenizer"),
        pytest.param({"tokenizer": OTHER, "config": OTHER, "generation": EOS}, id="an integer", marks=LONG),
        pytest.param({"tokenizer": OTHER, "config": EOS, "generation": None}, id="only the config", marks=LONG),
        pytest.param({"tokenizer": OTHER, "config": None, "generation": [EOS]}, id="a list of one", marks=LONG),
    ],
)
def test_lo_06_any_file_s_end_token_ends(tmp_path: Path, ends: Any) -> None:
    write_ends_model(tmp_path / "m", **ends)
    (output,) = answers(tmp_path / "m", {})
    assert (output.text, output.finish_reason, len(output.token_ids)) == (TEXT, FinishReason.STOP, 3)


def test_lo_06_without_a_generation_config_the_config_s_counts(tmp_path: Path) -> None:
    write_ends_model(tmp_path / "m", tokenizer=OTHER, config=OTHER, generation=None)
    (output,) = answers(tmp_path / "m", {})
    assert (output.finish_reason, len(output.token_ids)) == (FinishReason.LENGTH, MAX_TOKENS)
    assert output.text.startswith(TEXT) and EOS not in output.text


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param({"eos": OTHER, "eot": EOS}, id="eot"),
        pytest.param({"eos": EOS}, id="eos", marks=LONG),
        pytest.param({"eos": OTHER, "eom": EOS}, id="eom", marks=LONG),
    ],
)
def test_lo_06_any_end_token_of_a_gguf_header_ends(tmp_path: Path, ends: dict[str, str]) -> None:
    write_ends_model(tmp_path / "m", **BOTH)
    write_ends_gguf(tmp_path / "m.gguf", tmp_path / "m", **ends)
    (output,) = answers(tmp_path / "m.gguf", {})
    assert (output.text, output.finish_reason, len(output.token_ids)) == (TEXT, FinishReason.STOP, 3)


def test_lo_06_ends_that_are_ignored_or_have_to_wait(tmp_path: Path) -> None:
    write_ends_model(tmp_path / "m", **BOTH)
    ignoring, waiting = answers(tmp_path / "m", {"ignore_eos": True}, {"min_tokens": 6})
    assert (ignoring.finish_reason, len(ignoring.token_ids)) == (FinishReason.LENGTH, MAX_TOKENS)
    assert ignoring.text.startswith(TEXT) and EOS not in ignoring.text
    ends = load_tokenizer(tmp_path / "m").encode(EOS + OTHER)
    assert not set(waiting.token_ids[:6]) & set(ends)
    assert (waiting.finish_reason, len(waiting.token_ids)) == (FinishReason.STOP, 7)
    assert waiting.token_ids[-1] in ends
    assert waiting.text.startswith(TEXT) and EOS not in waiting.text
