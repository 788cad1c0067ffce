"""Launched: a server started as a user starts it, with all of its processes in view."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 150


def write_deployment(path: Path, port: int, **args: Any) -> Path:
    application = {
        "name": "launched",
        "route_prefix": "/",
        "import_path": "serve_app.app:build_app",
        "args": {"device": "cpu", "dtype": "float32", "num_threads": 1} | args,
    }
    path.write_text(
        yaml.safe_dump({"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]})
    )
    return path


def run_launcher(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    return subprocess.run(_command(arguments), cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "serve_app", *arguments]


@dataclass(frozen=True)
class Launched:
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def output(self) -> str:
        return self.log.read_text()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "\nready " not in self.output():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)

    def curl_line(self) -> str:
        return next(line.removeprefix("try").strip() for line in self.output().splitlines() if line.startswith("try "))

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextmanager
def launched(deployment: Path, port: int, folder: Path, *flags: str) -> Iterator[Launched]:
    """A server that is ready; killed at the end if it still runs."""
    log = folder / "launcher.log"
    with log.open("wb") as output:
        process = subprocess.Popen(_command([str(deployment), *flags]), cwd=ROOT, stdout=output, stderr=output)
    server = Launched(port, process, log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if process.poll() is None:
            server.stop(signal.SIGINT)
            process.wait(30)


def assert_nothing_is_left(
    processes: list[psutil.Process], port: int, shared_memory: set[str], within_s: float
) -> None:
    """`processes` are gone, `port` can be bound by a server that shares it with nobody, /dev/shm is as it was."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    assert shared_memory_files() <= shared_memory


def shared_memory_files() -> set[str]:
    return set(os.listdir("/dev/shm"))
