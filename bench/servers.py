"""Our server and an empty Serve application, each started as a user starts it, timed, and ended with all it started."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.replay import RequestFailed
from serve_app.launcher.ports import free_port

_ROOT = Path(__file__).resolve().parents[1]
_POLL_S = 0.05
_START_LIMIT_S = 300.0
_END_LIMIT_S = 60.0

# The least that Serve can serve, in a cluster of its own with the dashboard that `serve run` brings. It is a program
# of its own, for Ray is none of the benchmark's imports.
_EMPTY_APPLICATION = """
import signal, sys
import ray
from ray import serve
from starlette.responses import PlainTextResponse

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Empty:
    async def __call__(self, request):
        return PlainTextResponse("ok")

ray.init(address="local", namespace="serve", include_dashboard=True, dashboard_host="127.0.0.1", log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Empty.bind())
signal.pause()
"""


@dataclass(frozen=True, slots=True)
class Started:
    """A server and when its process was started."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path
    begun_s: float                                 # on time.perf_counter

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self.begun_s

    def wait_for_text(self, text: str) -> float:
        """Seconds from the start until `text` is in what the process printed."""
        self._wait(lambda: text in self.log.read_text(errors="replace"))
        return self.age_s

    def wait_for_http(self, path: str = "/") -> float:
        """Seconds from the start until a GET of `path` is answered with 200."""
        self._wait(lambda: _answers(self.url + path))
        return self.age_s

    def _wait(self, is_there: Any) -> None:
        while not is_there():
            if self.process.poll() is not None:
                raise RequestFailed(f"the server ended with status {self.process.returncode}:\n{self._tail()}")
            if self.age_s > _START_LIMIT_S:
                raise RequestFailed(f"the server was not ready after {_START_LIMIT_S:g} s:\n{self._tail()}")
            time.sleep(_POLL_S)

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def deployment(engine: Mapping[str, Any], port: int) -> dict[str, Any]:
    """deploy/app.yaml with another port and, in its application's arguments, those of `engine`."""
    document = yaml.safe_load((_ROOT / "deploy/app.yaml").read_text(encoding="utf-8"))
    document["http_options"] = {"host": "127.0.0.1", "port": port}
    [application] = document["applications"]
    application["args"] = application["args"] | dict(engine)
    return document


@contextlib.contextmanager
def our_server(log: Path, engine: Mapping[str, Any]) -> Iterator[Started]:
    """`python -m serve_app` on the default deployment with another engine, as `make serve` runs it."""
    file, port = log.with_suffix(".yaml"), free_port()
    file.write_text(yaml.safe_dump(deployment(engine, port)), encoding="utf-8")
    with _running(["-m", "serve_app", str(file)], port, log) as server:
        yield server


@contextlib.contextmanager
def empty_application(log: Path) -> Iterator[Started]:
    file, port = log.with_suffix(".py"), free_port()
    file.write_text(_EMPTY_APPLICATION, encoding="utf-8")
    with _running([str(file), str(port)], port, log) as server:
        yield server


@contextlib.contextmanager
def _running(arguments: Sequence[str], port: int, log: Path) -> Iterator[Started]:
    """Its output goes to `log`."""
    environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    begun_s = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=_ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield Started(process, f"http://127.0.0.1:{port}", log, begun_s)
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and whatever it started is killed that is still there when it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        members = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT_S)
        for member in [psutil.Process(process.pid), *members] if process.poll() is None else members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()                      # psutil checks that the id still means the same process
        psutil.wait_procs(members, timeout=10)
    process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
