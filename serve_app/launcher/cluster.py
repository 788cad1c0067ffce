"""The launcher's child: a Ray cluster of its own and `serve run` on it, watched until told to stop.

`python -m serve_app.launcher.cluster FILE EVENTS_FD GO_FD LAUNCHER_PID`. It reports through EVENTS_FD, one JSON object
a line: the event "ray", any number of "note", then "ready" or "failed" with its cause. After "ray" it waits for a byte
from GO_FD: the launcher checks the deployment while Ray starts. SIGTERM drains: requests get the deployment's
`drain_timeout_s` to finish; SIGUSR1 cuts that short. All Ray processes are below this one and end with it; it drains
and ends by itself if the launcher dies.
"""

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.serve.scripts import run as serve_run

from serve_app.deploy_file import DeployFile, read_deploy_file
from serve_app.launcher.draining import Drainer
from serve_app.launcher.processes import adopt_orphans, end_children, end_descendants, follow_parent

OBJECT_STORE_BYTES = 128 * 2**20      # what passes between our actors is tokens
POLL_S = 0.3
HEALTH_LIMIT_S = 60.0                 # from all replicas running to the first 200


class Events:
    """The pipe to the launcher."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._pipe = os.fdopen(descriptor, "w", buffering=1)

    def send(self, event: str, **values: Any) -> None:
        self._pipe.write(json.dumps({"event": event, **values}) + "\n")


class StopSignals:
    """SIGTERM and SIGUSR1 as flags that the main loop waits for."""

    def __init__(self) -> None:
        self.drain = threading.Event()
        self.cut = threading.Event()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.cut.set()
        self.drain.set()


def main(path: Path, events: Events, go: int) -> int:
    os.set_inheritable(go, False)
    deployment = read_deploy_file(path)
    context = ray.init(
        address="local",                              # never a cluster that runs here already
        namespace="serve",
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
    )
    end_children("log_monitor.py")                    # reads all logs ten times a second, for drivers that print them
    stop = StopSignals()                              # after ray.init, which sets handlers of its own
    events.send("ray", dashboard_url=f"http://{context.dashboard_url}", log_directory=_log_directory(context))
    if not os.read(go, 1):                            # the launcher has ended
        return 1
    serve_run.main([str(path), "--non-blocking"], standalone_mode=False)
    cause = _wait_until_ready(deployment, events, stop)
    if cause is not None:
        events.send("failed", cause=cause)
        return 1
    asyncio.run(_serve(deployment, events, stop))
    return 0


async def _serve(deployment: DeployFile, events: Events, stop: StopSignals) -> None:
    drainer = Drainer(deployment.application)
    await drainer.warm_up()
    events.send("ready")
    while not stop.drain.is_set():
        await asyncio.sleep(0.1)
    await drainer.drain(timeout_s=deployment.app.drain_timeout_s, is_cut_short=stop.cut.is_set)


def _wait_until_ready(deployment: DeployFile, events: Events, stop: StopSignals) -> str | None:
    """Returns None when the application answers `/health`; else why it never will, or that it need not any more."""
    told: set[str] = set()
    running_since: float | None = None
    while not stop.drain.wait(POLL_S):
        application = serve.status().applications.get(deployment.application)
        if application is None:
            continue
        messages = [f"{name}: {one.message}" for name, one in application.deployments.items() if one.message]
        if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            return failure_cause("\n".join([application.message, *messages]))
        mistakes = [message for message in messages if "ConfigError: " in message]
        if mistakes:                                  # Serve would try again, to the same end
            return failure_cause("\n".join(mistakes))
        for message in messages:                      # such as: no node has the resources that a replica asks for
            if message not in told:
                events.send("note", text=failure_cause(message))
        told.update(messages)
        if application.status != "RUNNING":
            continue
        running_since = running_since or time.monotonic()
        trouble = _health_trouble(deployment.url)
        if trouble is None:
            return None
        if time.monotonic() - running_since > HEALTH_LIMIT_S:
            return f"all replicas run, but {deployment.url}/health fails: {trouble}"
    return "told to stop"


def failure_cause(message: str) -> str:
    """One line out of Serve's status message: the last exception of the traceback in it, if there is one."""
    exceptions = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception|TooLong|Invalid\w*)): (.+)$", message, re.MULTILINE)
    if exceptions:
        name, text = exceptions[-1]
        return text if name == "ConfigError" else f"{name}: {text}"
    return " ".join(message.split()) or "Serve gave no reason"


def _health_trouble(url: str) -> str | None:
    """Why `/health` is not 200; None if it is."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):
            return None
    except OSError as error:                          # an HTTP status of 400 and above included
        return str(error)


def _log_directory(context: Any) -> str:
    return os.path.join(context.address_info["session_dir"], "logs")


if __name__ == "__main__":
    file, descriptor, go, launcher_pid = sys.argv[1:]
    follow_parent(int(launcher_pid), signal.SIGTERM)
    adopt_orphans()
    exit_status = 1
    try:
        exit_status = main(Path(file), Events(int(descriptor)), int(go))
    except Exception:
        traceback.print_exc()
    finally:
        end_descendants()
        os._exit(exit_status)     # Ray's own exit handlers would wait for the processes just killed
