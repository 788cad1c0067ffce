"""The ingress grows under load."""

import threading
import time

import pytest

from tests.integration.conftest import INGRESS_TARGET, Application, Cluster
from tests.integration.sse import stream

pytestmark = pytest.mark.integration

NUM_CLIENTS = 2 * INGRESS_TARGET


def test_load_scales_the_ingress_from_one_to_two(cluster: Cluster, script: Application) -> None:
    assert len(cluster.actors("ServeReplica:script:Ingress")) == 1
    enough = threading.Event()

    def keep_asking() -> None:
        while not enough.is_set():
            stream(script, "/v1/completions", {"prompt": "x L", "max_tokens": 500, "temperature": 0})

    clients = [threading.Thread(target=keep_asking) for _ in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    deadline = time.monotonic() + 60
    while len(cluster.actors("ServeReplica:script:Ingress")) < 2:
        assert time.monotonic() < deadline
        time.sleep(1)
    enough.set()
    for client in clients:
        client.join()
    script.assert_alive()
