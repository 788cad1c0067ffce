import dataclasses
import json
import shlex
import signal

import pytest

from engine.api import ConfigError, PreflightReport
from serve_app.__main__ import memory_plan
from serve_app.deploy_file import IMPORT_PATH, parse_deploy_file
from serve_app.launcher import supervisor
from serve_app.launcher.signals import Signals
from serve_app.launcher.supervisor import ready_block, supervise, watch

REPORT = PreflightReport(
    model_name="it's",
    device="cpu",
    dtype="float16",
    max_model_len=4096,
    weights_bytes=2**30,
    activation_bytes=2**29,
    kv_bytes=2**31,
    kv_capacity_tokens=8192,
)
DEPLOYMENT = parse_deploy_file(
    {"http_options": {"port": 9000}, "applications": [{"import_path": IMPORT_PATH, "args": {"model": "demo"}}]}
)


def test_ready_block_tells_what_runs_and_where():
    block = ready_block(DEPLOYMENT, REPORT, {"dashboard_url": "http://127.0.0.1:8265"})
    for fact in ("http://127.0.0.1:9000/v1\n", "it's\n", "cpu\n", "float16\n", "8192 tokens\n", "http://127.0.0.1:8265"):
        assert fact in block


def test_curl_line_survives_the_shell_whatever_the_model_is_called():
    block = ready_block(DEPLOYMENT, REPORT, {"dashboard_url": ""})
    line = next(line for line in block.splitlines() if "curl" in line)
    words = shlex.split(line.removeprefix("try"))
    assert words[0] == "curl"
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's"


def test_memory_plan_is_one_line_with_every_part():
    assert memory_plan(REPORT) == (
        "memory plan on cpu: weights 1.00 GiB + activations 0.50 GiB + KV cache 2.00 GiB (8192 tokens)"
    )


@pytest.mark.parametrize(("task", "path"), [("embed", "/v1/embeddings"), ("score", "/v1/rerank")])
def test_an_encoder_has_no_cache_and_another_request_to_try(task, path):
    report = dataclasses.replace(REPORT, task=task, kv_bytes=0, kv_capacity_tokens=0)
    block = ready_block(DEPLOYMENT, report, {"dashboard_url": ""})
    assert f"http://127.0.0.1:9000{path} " in block
    assert "KV cache" not in block
    assert memory_plan(report) == "memory plan on cpu: weights 1.00 GiB + activations 0.50 GiB"


class FakeCluster:
    """A cluster process that ends with `exit_status` when it is told to stop, or never."""

    def __init__(self, exit_status: int | None) -> None:
        self.exit_status: int | None = None
        self.told: list[int] = []
        self._on_stop = exit_status

    @property
    def is_running(self) -> bool:
        return self.exit_status is None

    def signal(self, number: int) -> None:
        self.told.append(number)
        self.exit_status = self._on_stop

    def last_output(self) -> str:
        return "raylet: out of disk"


def arrived(*numbers: signal.Signals) -> Signals:
    """Signals that have come a minute apart."""
    clock = iter(range(0, 6000, 30))
    signals = Signals(lambda: next(clock))
    for number in numbers:
        signals.note(number)
    return signals


@pytest.mark.parametrize(
    ("signals", "on_stop", "told", "status"),
    [
        ([signal.SIGTERM], 0, [signal.SIGTERM], 0),
        ([signal.SIGTERM], 1, [signal.SIGTERM], 143),
        ([signal.SIGTERM, signal.SIGTERM], None, [signal.SIGTERM], 143),
        ([signal.SIGINT], 0, [signal.SIGUSR1], 130),
        ([signal.SIGINT, signal.SIGINT], None, [signal.SIGUSR1], 130),
    ],
    ids=["drained", "drain failed", "second signal does not wait", "Ctrl-C", "second Ctrl-C does not wait"],
)
def test_exit_status_tells_how_it_ended(signals, on_stop, told, status):
    cluster = FakeCluster(on_stop)
    assert watch(cluster, DEPLOYMENT, arrived(*signals), lambda text: None) == status
    assert cluster.told == told


def test_a_cluster_that_ends_by_itself_ends_the_launcher_with_its_last_words():
    cluster, said = FakeCluster(None), []
    cluster.exit_status = 7
    assert watch(cluster, DEPLOYMENT, arrived(), said.append) == 1
    assert "exit status 7" in said[0] and "raylet: out of disk" in said[0]


class StartedCluster(FakeCluster):
    """Ready once it has been told to go on."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__(0)
        self._steps = steps
        steps.append("Ray starts")
        self._events = [{"event": "ray", "log_directory": "", "dashboard_url": ""}, {"event": "ready"}]

    def go_on(self) -> None:
        self._steps.append("told to go on")

    def next_event(self, timeout_s: float) -> dict[str, str]:
        return self._events.pop(0)


@pytest.fixture
def steps(monkeypatch):
    steps: list[str] = []
    monkeypatch.setattr(supervisor, "ClusterProcess", lambda *arguments: StartedCluster(steps))
    monkeypatch.setattr(supervisor, "end_descendants", lambda: steps.append("all is ended"))
    return steps


def test_ray_starts_beside_the_preflight_and_serve_after_it(steps):
    class Later(Signals):
        def raise_if_any(self) -> None:                # those below come once the server is up
            pass

    signals = Later(lambda: 0.0)
    signals.note(signal.SIGTERM)

    def check() -> PreflightReport:
        steps.append("checked")
        return REPORT

    assert supervise(DEPLOYMENT, check, {}, signals, lambda text: None) == 0
    assert steps == ["Ray starts", "checked", "told to go on", "all is ended"]


def test_what_the_preflight_refuses_is_never_deployed(steps):
    def check() -> PreflightReport:
        raise ConfigError("no such model")

    with pytest.raises(ConfigError, match="no such model"):
        supervise(DEPLOYMENT, check, {}, arrived(), lambda text: None)
    assert steps == ["Ray starts", "all is ended"]
