"""Launches to figures: one process each, as many at once as there are cores, cached by what decides the outcome.

A compiler fault can end a process. Each launch is compiled in a fork of this one, which has everything imported and
caught already, and hands its figures over as a file of the cache; a file that is missing means that it failed.
"""

import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import triton

from kernels.aot import control_flow, figures, machine_code
from kernels.aot.figures import Figures
from kernels.aot.launches import TARGETS, Launch


def cache_key(launch: Launch) -> str:
    """Equal for launches that compile to the same code and are read in the same way."""
    modules = (figures, machine_code, control_flow)
    readers = "".join(Path(module.__file__ or "").read_text(encoding="utf-8") for module in modules)
    parts = (launch.source.hash(), launch.arch, sorted(launch.options.items()), triton.__version__, readers)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def measure(launch: Launch) -> Figures:
    """Compiles in this process."""
    compiled = triton.compile(launch.source, target=TARGETS[launch.arch], options=dict(launch.options))
    if launch.arch == "gfx942":
        text = compiled.asm["amdgcn"]
        code, resources = machine_code.parse_amdgcn(text), machine_code.amd_resources(text)
    else:
        code = machine_code.parse_sass(_cuobjdump("-sass", compiled.asm["cubin"]))
        resources = machine_code.nvidia_resources(_cuobjdump("-res-usage", compiled.asm["cubin"]), code)
    return figures.read(launch, code, resources, compiled.metadata.shared)


def _cuobjdump(what: str, cubin: bytes) -> str:
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, what, file.name], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def compile_all(
    launches: Mapping[str, Launch], directory: Path, workers: int
) -> Iterator[tuple[Launch, Figures | str]]:
    """Each launch, by its cache key, with its figures or the text of what went wrong; in the order they finish."""
    directory.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    waiting = []
    for key, launch in launches.items():
        path = directory / f"{key}.json"
        if path.exists():
            yield launch, _load(path)
        else:
            waiting.append((launch, path))
    process: multiprocessing.process.BaseProcess
    running: dict[int, tuple[multiprocessing.process.BaseProcess, Launch, Path]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                launch, path = waiting.pop(0)
                process = fork.Process(target=_compile_into, args=(launch, path))
                process.start()
                running[process.sentinel] = process, launch, path
            for sentinel in multiprocessing.connection.wait(list(running)):
                assert isinstance(sentinel, int)
                process, launch, path = running.pop(sentinel)
                process.join()
                yield launch, _load(path) if path.exists() else _failure(process.exitcode, path)
    finally:
        for process, _, _ in running.values():
            process.kill()


def _compile_into(launch: Launch, path: Path) -> None:
    """The child: figures into `path`, whole or not at all; what the compiler says into a log beside it."""
    log = path.with_suffix(".log")
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        found = measure(launch)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(found)), encoding="utf-8")
        part.replace(path)
    log.unlink()


def _load(path: Path) -> Figures:
    return Figures(**json.loads(path.read_text(encoding="utf-8")))


def _failure(exit_code: int | None, path: Path) -> str:
    log = path.with_suffix(".log")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return f"exit code {exit_code}: {lines[-1] if lines else 'nothing said'} (whole text: {log})"
