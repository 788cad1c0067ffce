"""One Ray cluster with real HTTP for all integration tests, serving two tiny models."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.util.state import list_actors
from ray.util.state.common import ActorState
from transformers import PreTrainedModel

from engine.api import load_tokenizer
from serve_app.config import serve_environment
from serve_app.launcher.ports import free_port
from tests.helpers_models import rand_config, save_checkpoint
from tests.scripted_model import write_scripted_model
from tests.tiny_tokenizer import write_tiny_tokenizer

ROOT = Path(__file__).parents[2]
DEPLOY_TIMEOUT_S = 120
INGRESS_TARGET = 30                                        # requests per replica; only one test sends more at once
RAND_POOL_TOKENS = 512
PLAIN: dict[str, Any] = {"verify": False}                  # for httpx: no certificates to load, 24 ms of work a request
SCRIPTED_TEXTS = {
    "P": b" Hot|" + " 🌶".encode()[:3] + b"|\x8c|\xb6| done",
    "V": " U|NO| D|UE| TRE",
    "C": 'Ok|\n<tool_call>|{"name": "f", |"arguments": {"city": |"Besançon"}|}|</tool_call>',
}
SCRIPTED_LOOPS = {"R": b"\x80", "L": b" la"}


@dataclass(frozen=True)
class Cluster:
    url: str                                               # of the HTTP proxy
    dashboard: ServeSubmissionClient                       # Ray's own client knows how to authenticate

    def actors(self, class_name: str) -> list[ActorState]:
        """Living actors, as the dashboard lists them."""
        filters = [("state", "=", "ALIVE"), ("class_name", "=", class_name)]
        return list_actors(address=self.dashboard._address, filters=filters, limit=1000, detail=True)

    def replica(self, application: str, deployment: str) -> ActorState:
        """The only replica of a deployment."""
        (replica,) = self.actors(f"ServeReplica:{application}:{deployment}")
        return replica

    def engine(self, application: str) -> ActorState:
        (engine,) = self._engines(application)
        return engine

    def engine_pids(self, application: str) -> set[int]:
        return {engine.pid for engine in self._engines(application)}

    def _engines(self, application: str) -> list[ActorState]:
        return [a for a in self.actors("EngineActor") if a.name.startswith(f"{application}#EngineActor#")]


def num_gpus(actor: ActorState) -> float:
    """Within a placement group a resource goes by the name of its bundle."""
    resources = actor.required_resources or {}
    return max((amount for name, amount in resources.items() if name.startswith("GPU")), default=0)


@dataclass(frozen=True)
class Application:
    """One model and its HTTP side."""

    name: str
    url: str

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 60) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=timeout_s, **PLAIN)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """A completion that is expected to succeed."""
        response = self.post("/v1/completions", {"temperature": 0} | body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def metric(self, name: str, label: str = "") -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=10, **PLAIN).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and label in line)

    def is_healthy(self) -> bool:
        return httpx.get(f"{self.url}/health", timeout=5, **PLAIN).status_code == 200

    def assert_alive(self) -> None:
        response = self.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0}, timeout_s=10)
        assert response.status_code == 200, response.text
        assert self.is_healthy()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("script", "rand")}
    write_scripted_model(folders["script"], SCRIPTED_TEXTS, SCRIPTED_LOOPS)
    write_tiny_tokenizer(folders["rand"])
    save_checkpoint(folders["rand"], rand_config(vocab_size=258, max_position_embeddings=2048))
    return folders


@pytest.fixture(scope="session")
def rand_model(models: dict[str, Path]) -> PreTrainedModel:
    """The same weights in transformers."""
    from tests.helpers_models import reference

    return reference(models["rand"])


@pytest.fixture(scope="session")
def cluster(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        for name, value in serve_environment(haproxy_fallback_port=None, environ={}).items():
            patch.setenv(name, value)
        patch.setenv("CONVEYOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        for folder in models.values():
            load_tokenizer(folder)                         # converted once, here, where transformers is loaded already
        port, dashboard_port = free_port(), free_port()
        context = ray.init(
            address="local", namespace="serve", num_cpus=4, num_gpus=1, object_store_memory=100 * 2**20,
            include_dashboard=True, dashboard_host="127.0.0.1", dashboard_port=dashboard_port, log_to_driver=False,
        )  # fmt: skip
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield Cluster(f"http://127.0.0.1:{port}", ServeSubmissionClient(f"http://{context.dashboard_url}"))
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="session")
def applications(cluster: Cluster, models: dict[str, Path]) -> dict[str, Application]:
    """Deployed as `serve deploy` would, by the YAML's own structure."""
    args = {"device": "cpu", "dtype": "float32", "num_threads": 1}
    script_args = args | {"model": str(models["script"]), "kv_cache": {"capacity_tokens": 8192}}
    pool = {"capacity_tokens": RAND_POOL_TOKENS, "block_size": 16}
    rand_args = args | {"model": str(models["rand"]), "kv_cache": pool}
    on_logical_gpu = {"name": "LLMServer", "placement_group_bundles": [{"CPU": 1, "GPU": 1}]}
    ingress = {
        "name": "Ingress",
        "autoscaling_config": {
            "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": INGRESS_TARGET, "upscale_delay_s": 1,
            "metrics_interval_s": 0.5, "look_back_period_s": 2, "downscale_delay_s": 600,
        },
    }  # fmt: skip
    faulty = _application("faulty", script_args, []) | {"import_path": "tests.integration.faulty_app:build_app"}
    _deploy(
        cluster,
        [_application("script", script_args, [ingress]), _application("rand", rand_args, [on_logical_gpu]), faulty],
    )
    return {name: Application(name, f"{cluster.url}/{name}") for name in ("script", "rand", "faulty")}


@pytest.fixture(scope="session")
def script(applications: dict[str, Application]) -> Application:
    return applications["script"]


@pytest.fixture(scope="session")
def rand(applications: dict[str, Application]) -> Application:
    return applications["rand"]


@pytest.fixture(scope="session")
def faulty(applications: dict[str, Application]) -> Application:
    return applications["faulty"]


def _application(name: str, args: dict[str, Any], deployments: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": "serve_app.app:build_app",
        "args": args | {"served_model_name": name},
        "deployments": deployments,
    }


def _deploy(cluster: Cluster, applications: list[dict[str, Any]]) -> None:
    """Returns when every application answers; raises with Serve's own message if one cannot."""
    cluster.dashboard.deploy_applications({"applications": applications})
    deadline = time.monotonic() + DEPLOY_TIMEOUT_S
    waiting = [application["name"] for application in applications]
    while waiting:
        assert time.monotonic() < deadline, serve.status()
        status = serve.status().applications.get(waiting[0])
        assert status is None or status.status != "DEPLOY_FAILED", status
        url = f"{cluster.url}/{waiting[0]}/health"
        if status is not None and status.status == "RUNNING" and httpx.get(url, **PLAIN).status_code == 200:
            waiting.pop(0)
        time.sleep(0.2)
