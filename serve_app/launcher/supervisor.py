"""The supervisor: starts the cluster process, tells the terminal how it gets on, and ends all of it on a signal."""

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from engine.api import ConfigError, PreflightReport, Task
from serve_app.deploy_file import DeployFile
from serve_app.launcher.processes import end_descendants
from serve_app.launcher.signals import Signals

POLL_S = 0.1
INTERRUPT_S = 6.0             # after Ctrl-C streams get this long to end with an error, then all is killed
EXIT_SLACK_S = 10.0           # beyond drain_timeout_s, for the cluster process to come to its own end


class ClusterProcess:
    """The child that runs Ray and, once it is told to go on, Serve. Its output goes to a file, shown if it dies."""

    def __init__(self, deployment: DeployFile, environ: Mapping[str, str], directory: Path) -> None:
        file = directory / "deploy.yaml"
        file.write_text(yaml.safe_dump(dict(deployment.serve_config)), encoding="utf-8")
        self.output = directory / "output.log"
        reading, writing = os.pipe()
        go_reading, self._go_writing = os.pipe()
        descriptors = (writing, go_reading)
        numbers = map(str, (*descriptors, os.getpid()))
        command = [sys.executable, "-m", "serve_app.launcher.cluster", str(file), *numbers]
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environ),
                pass_fds=descriptors,
                start_new_session=True,               # Ctrl-C in the terminal is for the launcher alone
            )
        for descriptor in descriptors:
            os.close(descriptor)
        self._events = os.fdopen(reading)

    def go_on(self) -> None:
        """Have it deploy; until then it has Ray alone."""
        with contextlib.suppress(BrokenPipeError):     # it has ended, which is noticed elsewhere
            os.write(self._go_writing, b"\n")
        os.close(self._go_writing)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event within `timeout_s`; None if there is none or the process has ended."""
        if not select.select([self._events], [], [], timeout_s)[0]:
            return None
        line = self._events.readline()
        if not line:
            time.sleep(timeout_s)                     # end of file stays readable
            return None
        event: dict[str, Any] = json.loads(line)
        return event

    def signal(self, number: int) -> None:
        if self.is_running:
            self._process.send_signal(number)

    def last_output(self) -> str:
        with self.output.open(encoding="utf-8", errors="replace") as lines:
            return "".join(deque(lines, maxlen=20)).rstrip()


def supervise(
    deployment: DeployFile,
    check: Callable[[], PreflightReport],
    environ: Mapping[str, str],
    signals: Signals,
    say: Callable[[str], None],
) -> int:
    """Run `deployment` until a signal ends it. Returns the exit status; raises ConfigError if it cannot start.

    `check` is the preflight. Ray starts meanwhile: much of either's time is waiting.
    """
    with TemporaryDirectory(prefix="conveyor-") as directory:
        cluster = ClusterProcess(deployment, environ, Path(directory))
        try:
            report = check()
            cluster.go_on()
            ray_event = _start(cluster, signals, say)
            say(ready_block(deployment, report, ray_event))
            return watch(cluster, deployment, signals, say)
        finally:
            end_descendants()


def _start(cluster: ClusterProcess, signals: Signals, say: Callable[[str], None]) -> dict[str, Any]:
    """Wait for the application to be ready; returns the event that told about Ray."""
    ray_event: dict[str, Any] = {}
    while True:
        signals.raise_if_any()
        event = cluster.next_event(POLL_S)
        if event is None:
            if not cluster.is_running:
                raise ConfigError(f"Ray or Serve ended while starting:\n{cluster.last_output()}")
        elif event["event"] == "ray":
            ray_event = event
            say(f"Ray is up, starting replicas (logs: {event['log_directory']})")
        elif event["event"] == "failed":
            raise ConfigError(f"the application failed to start: {event['cause']}")
        elif event["event"] == "note":
            say(f"note: {event['text']}")
        else:
            return ray_event


def watch(cluster: ClusterProcess, deployment: DeployFile, signals: Signals, say: Callable[[str], None]) -> int:
    """Wait for a signal, then for the drain; a second signal, or time, ends it at once."""
    while not signals.received:
        if not cluster.is_running:
            say(f"error: Ray or Serve ended with exit status {cluster.exit_status}:\n{cluster.last_output()}")
            return 1
        time.sleep(POLL_S)
    first = signals.received[0]
    if first == signal.SIGTERM:
        say(f"draining: running requests get up to {deployment.app.drain_timeout_s:g} s; a second signal stops at once")
        cluster.signal(signal.SIGTERM)
        patience_s = deployment.app.drain_timeout_s + EXIT_SLACK_S
    else:
        say("stopping")
        cluster.signal(signal.SIGUSR1)
        patience_s = INTERRUPT_S
    deadline = time.monotonic() + patience_s
    while cluster.is_running and len(signals.received) == 1 and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if len(signals.received) == 1 and cluster.exit_status:
        say(f"error: the drain failed:\n{cluster.last_output()}")
    return 0 if first == signal.SIGTERM and cluster.exit_status == 0 else 128 + first


_TRIES: Mapping[Task, tuple[str, Mapping[str, Any]]] = {      # what a model can do -> a request to it
    "generate": ("chat/completions", {"messages": [{"role": "user", "content": "Say hello."}], "stream": True}),
    "embed": ("embeddings", {"input": "Say hello."}),
    "score": ("rerank", {"query": "a greeting", "documents": ["Hello.", "No."]}),
}


def ready_block(deployment: DeployFile, report: PreflightReport, ray_event: Mapping[str, Any]) -> str:
    path, fields = _TRIES[report.task]
    body = json.dumps({"model": report.model_name, **fields})
    curl = f"curl -N {deployment.url}/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    cache = f"KV cache   {report.kv_capacity_tokens} tokens\n" if report.task == "generate" else ""
    return (
        f"\nready      {deployment.url}/v1\n"
        f"model      {report.model_name}\n"
        f"device     {report.device}\n"
        f"dtype      {report.dtype}\n"
        f"{cache}"
        f"dashboard  {ray_event['dashboard_url']}  (its token: ~/.ray/auth_token)\n"
        f"try        {curl}\n"
    )
