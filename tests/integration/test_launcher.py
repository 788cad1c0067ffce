"""The launcher end to end: ready block, busy port, drain, Ctrl-C, restart, kill -9; OP-02 and OP-05."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.launcher.ports import free_port
from tests.integration.launched import (
    ROOT,
    Launched,
    assert_nothing_is_left,
    launched,
    run_launcher,
    shared_memory_files,
    write_deployment,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def port() -> int:
    """The same for every server of this module: each is a restart, with the last one's connections in TIME_WAIT."""
    return free_port()


@pytest.fixture
def deployment(port: int, models: dict[str, Path], tmp_path: Path) -> Path:
    path = tmp_path / "deployment.yaml"
    return write_deployment(path, port, model=str(models["script"]), served_model_name="script")


class RunningStream(threading.Thread):
    """Long completions in one stream, read to its end; `started` once the first token has come.

    `n` choices, for one alone is over in a second on a quick machine.
    """

    def __init__(self, server: Launched, max_tokens: int, n: int) -> None:
        super().__init__()
        self.url = f"{server.url}/v1/completions"
        self.body: dict[str, Any] = {
            "prompt": "x L", "max_tokens": max_tokens, "n": n, "temperature": 0, "stream": True
        }  # fmt: skip
        self.payloads: list[str] = []
        self.started = threading.Event()
        self.start()
        assert self.started.wait(30)

    def run(self) -> None:
        with httpx.stream("POST", self.url, json=self.body, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.payloads.append(line.removeprefix("data: "))
                    self.started.set()


def test_sigterm_drains(deployment: Path, port: int, tmp_path: Path) -> None:
    shared_memory = shared_memory_files()
    with launched(deployment, port, tmp_path) as server:
        curl = subprocess.run(server.curl_line(), shell=True, capture_output=True, text=True, timeout=30)
        assert curl.returncode == 0 and '"object":"chat.completion.chunk"' in curl.stdout, (curl, server.output())
        processes = server.processes()
        assert not any("log_monitor.py" in word for one in processes for word in one.cmdline())
        stream = RunningStream(server, max_tokens=1500, n=16)
        server.stop(signal.SIGTERM)
        while httpx.get(f"{server.url}/v1/models").status_code == 200:
            time.sleep(0.02)
        refused = httpx.get(f"{server.url}/v1/models")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "server_error")
        tokens_at_refusal = len(stream.payloads)
        assert server.process.wait(40) == 0, server.output()
        stream.join()
    assert len(stream.payloads) > tokens_at_refusal
    assert stream.payloads[-1] == "[DONE]"
    assert_nothing_is_left(processes, port, shared_memory, within_s=1)


def test_ctrl_c_ends_streams_with_an_error_within_ten_seconds(deployment: Path, port: int, tmp_path: Path) -> None:
    shared_memory = shared_memory_files()
    with launched(deployment, port, tmp_path) as server:
        begun = time.monotonic()
        second = run_launcher(str(deployment))
        assert second.returncode == 1
        assert second.stderr.count("\n") == 1 and f"port {port} on 127.0.0.1 is in use by process" in second.stderr
        assert time.monotonic() - begun < 5
        assert httpx.get(f"{server.url}/health").status_code == 200
        processes = server.processes()
        stream = RunningStream(server, max_tokens=1900, n=64)
        server.stop(signal.SIGINT)
        assert server.process.wait(10) == 130
        stream.join()
        assert "error" not in server.output()
    assert "the server is shutting down" in json.loads(stream.payloads[-1])["error"]["message"]
    assert_nothing_is_left(processes, port, shared_memory, within_s=1)


@pytest.mark.exhaustive
def test_kill_of_the_launcher_leaves_nothing_for_long_under_haproxy(
    deployment: Path, port: int, tmp_path: Path
) -> None:
    shared_memory = shared_memory_files()
    with launched(deployment, port, tmp_path, "--haproxy") as server:
        processes = server.processes()
        assert any(one.name() == "haproxy" for one in processes)
        stream = RunningStream(server, max_tokens=20, n=1)
        stream.join()
        assert stream.payloads[-1] == "[DONE]"
        server.stop(signal.SIGKILL)
        server.process.wait()
        assert_nothing_is_left(processes, port, shared_memory, within_s=15)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"model": "/no/such/model"}, "/no/such/model"),
        ({"model": "demo", "kv_cache": {"blok_size": 16}}, "unknown key 'blok_size': did you mean 'block_size'?"),
    ],
    ids=["no model", "bad key"],
)
def test_mistakes_end_in_one_line(args: dict[str, Any], message: str, tmp_path: Path) -> None:
    result = run_launcher(str(write_deployment(tmp_path / "deployment.yaml", free_port(), **args)))
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    assert message in result.stderr


def test_a_model_that_fails_while_loading_ends_the_launcher(models: dict[str, Path], tmp_path: Path) -> None:
    """OP-03: with its cause, instead of a server that looks healthy for ever."""
    folder = tmp_path / "cut"
    folder.mkdir()
    for file in models["script"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    result = run_launcher(str(write_deployment(tmp_path / "deployment.yaml", free_port(), model=str(folder))))
    assert result.returncode == 1
    assert str(folder) in result.stderr.splitlines()[-1], result.stderr


@pytest.mark.exhaustive
def test_bare_serve_run_serves_the_same_application(deployment: Path, port: int, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("serve")), "run", "--address", "local", str(deployment)]
    with (tmp_path / "serve.log").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 150
        status = 0
        while status != 200 and time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                status = httpx.get(f"http://127.0.0.1:{port}/health").status_code
            except httpx.TransportError:
                assert process.poll() is None
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()
        assert [model["id"] for model in answer["data"]] == ["script"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
