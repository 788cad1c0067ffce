"""What an operator finds through Ray's dashboard."""

import time
from contextlib import suppress

import httpx
import pytest

from tests.integration.conftest import Application, Cluster, num_gpus

pytestmark = pytest.mark.integration


def test_our_deployments_and_their_engine_are_actors(cluster: Cluster, script: Application) -> None:
    assert len(cluster.actors("ServeReplica:script:Ingress")) >= 1
    replica = cluster.replica("script", "LLMServer")
    assert cluster.engine("script").name.endswith(replica.name.split("#")[-1])


def test_the_engine_holds_the_gpu_and_its_replica_none(cluster: Cluster, rand: Application) -> None:
    assert num_gpus(cluster.engine("rand")) == 1
    assert num_gpus(cluster.replica("rand", "LLMServer")) == 0


def test_our_metrics_are_exported_by_ray(cluster: Cluster, script: Application) -> None:
    script.assert_alive()
    deadline = time.monotonic() + 30                       # Ray exports every few seconds
    while "ray_conveyor_generated_tokens" not in (text := _exported(cluster)):
        assert time.monotonic() < deadline, text[:2000]
        time.sleep(1)
    assert 'deployment="LLMServer"' in text


def _exported(cluster: Cluster) -> str:
    """All metrics of the targets that Prometheus would discover through the dashboard."""
    discovered = cluster.dashboard._do_request("GET", "/api/prometheus/sd").json()
    targets = [target for group in discovered for target in group["targets"]]
    texts = []
    for target in targets:
        with suppress(httpx.ConnectError):                 # a target may have gone
            texts.append(httpx.get(f"http://{target}/metrics", timeout=10).text)
    return "\n".join(texts)
