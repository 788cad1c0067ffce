import json
from dataclasses import replace

import pytest

from bench.peers import lineup
from bench.peers.lineup import SYSTEMS, Settings, engine_config, opener_of, prepare
from bench.peers.packages import PEERS, PeerFailed
from engine.api import EngineConfig


@pytest.fixture
def settings(tmp_path):
    model = tmp_path / "model-q4.gguf"
    model.write_bytes(b"x" * 10)
    return Settings(
        model=str(model), model_path=model, file_type=15, num_threads=2, max_len=512, kv_tokens=4096, batch_size=16,
        peer_dtype="float32", batch_tokens=512, request_timeout_s=60,
    )  # fmt: skip


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands that would run, as (peer, module, {option: value})."""
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    found = []

    def command(peer, module, arguments):
        found.append((peer, module, dict(zip(arguments[::2], arguments[1::2], strict=True))))
        return ["true"]

    monkeypatch.setattr(lineup, "peer_command", command)
    monkeypatch.setattr(lineup, "environment_of", lambda peer: None)
    monkeypatch.setattr(lineup, "run_once", lambda command, log: None)
    return found


def started(name, settings, commands, tmp_path):
    """The options that the system's process is started with."""
    commands.clear()
    opener_of(name, settings, tmp_path / "log")()
    [(_, module, options)] = commands
    assert module == SYSTEMS[name].peer
    return options


def test_each_system_has_a_peer_and_a_colour_of_its_own():
    assert {entry.peer for entry in SYSTEMS.values()} == set(PEERS)
    assert len({entry.colour for entry in SYSTEMS.values()}) == len(SYSTEMS)
    assert len({entry.label for entry in SYSTEMS.values()}) == len(SYSTEMS)


def test_all_are_told_the_same_threads(settings, commands, tmp_path):
    for name, entry in SYSTEMS.items():
        if entry.is_ours:
            assert engine_config(settings, entry.dtype)["num_threads"] == 2
        else:
            assert started(name, settings, commands, tmp_path)["--num-threads"] == "2"


def test_our_engine_is_told_what_our_server_is(settings, commands, tmp_path):
    options = started("ours_engine_int8", settings, commands, tmp_path)
    config = json.loads(options["--config"])
    assert config == engine_config(settings, "int8")
    assert EngineConfig.model_validate(config).kv_cache.capacity_tokens == 4096


def test_llama_cpp_takes_the_file_that_is_of_the_wanted_format(settings, commands, tmp_path):
    options = started("llama_cpp_q4_k_m_48", settings, commands, tmp_path)
    assert (options["--model"], options["--num-slots"]) == (settings.model, "48")
    prepare("llama_cpp_q4_k_m_48", settings, tmp_path / "log")
    assert len(commands) == 1                                 # nothing was converted


def test_any_other_format_is_made_once_and_kept(settings, commands, tmp_path):
    prepare("llama_cpp_q8_0_16", settings, tmp_path / "log")
    [(peer, module, options)] = commands
    assert (peer, module, options["--file-type"]) == ("llama_cpp", "llama_cpp", "q8_0")
    made = options["--quantize-to"]
    assert started("llama_cpp_q8_0_48", settings, commands, tmp_path)["--model"] == made
    lineup.Path(made).write_bytes(b"")
    commands.clear()
    prepare("llama_cpp_q8_0_16", settings, tmp_path / "log")
    assert commands == []


def test_llama_cpp_cannot_take_a_folder(settings, commands, tmp_path):
    with pytest.raises(PeerFailed, match=r"llama.cpp reads .gguf files, and org/model is none"):
        prepare("llama_cpp_q8_0_16", replace(settings, model="org/model", model_path=tmp_path), tmp_path / "log")


def test_vllm_gets_a_gguf_file_as_a_folder_and_a_folder_as_it_is(settings, commands, tmp_path):
    prepare("vllm_cpu_float32", settings, tmp_path / "log")
    [(peer, module, options)] = commands
    assert (peer, module) == ("transformers_static", "dequantize")
    assert started("vllm_cpu_float32", settings, commands, tmp_path)["--model"] == options["--out"]
    folder = replace(settings, model_path=tmp_path, file_type=None)
    assert started("vllm_cpu_float32", folder, commands, tmp_path)["--model"] == str(tmp_path)


def test_a_converted_model_is_not_taken_for_another_of_the_same_name(settings, commands, tmp_path):
    first = started("llama_cpp_q8_0_16", settings, commands, tmp_path)["--model"]
    settings.model_path.write_bytes(b"y" * 11)
    assert started("llama_cpp_q8_0_16", settings, commands, tmp_path)["--model"] != first
