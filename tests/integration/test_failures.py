"""OP-01: an engine that dies or hangs ends its requests with errors, and comes back by itself."""

import json
import os
import signal
import threading
import time

import httpx
import pytest

from tests.integration.conftest import Application, Cluster, num_gpus
from tests.integration.faulty_app import FAULT
from tests.integration.sse import open_stream

pytestmark = pytest.mark.integration

RECOVERY_S = 60
NEW_REQUESTS_S = 30


@pytest.mark.parametrize(
    ("number", "notice_s"),
    [(signal.SIGKILL, 10), (signal.SIGSTOP, 20)],
    ids=["killed", "stopped"],
)
def test_op_01_an_engine_that_ends_is_told_and_replaced(
    cluster: Cluster, script: Application, number: signal.Signals, notice_s: float
) -> None:
    script.assert_alive()
    pid = cluster.engine("script").pid
    statuses: list[int] = []                               # of a plain request that is under way
    body = {"prompt": "x L", "max_tokens": 1900, "temperature": 0}

    def ask_plainly() -> None:
        statuses.append(script.post("/v1/completions", body | {"n": 8}).status_code)

    plain = threading.Thread(target=ask_plainly)
    with open_stream(script, "/v1/completions", body) as payloads:
        plain.start()
        next(payloads)
        os.kill(pid, number)
        killed_s = time.monotonic()
        last = list(payloads)[-1]
        assert json.loads(last)["error"]["type"] == "server_error"
    plain.join()
    assert statuses == [503]
    assert time.monotonic() - killed_s < notice_s
    deadline = killed_s + RECOVERY_S
    while script.is_healthy():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while not all(script.is_healthy() for _ in range(10)):       # each ingress sees it in its own time
        assert time.monotonic() < deadline
        time.sleep(0.1)
    script.assert_alive()
    assert cluster.engine("script").pid != pid


def test_op_01_a_fault_in_the_step_loop_is_told_and_the_engine_replaced(cluster: Cluster, faulty: Application) -> None:
    pid = cluster.engine("faulty").pid
    body = {"prompt": "x L", "max_tokens": 1900, "temperature": 0}
    with open_stream(faulty, "/v1/completions", body) as payloads:
        next(payloads)
        response = faulty.post("/v1/completions", {"prompt": [FAULT]})
        assert response.status_code == 503
        assert "the device was lost" in response.json()["error"]["message"]
        assert "the device was lost" in json.loads(list(payloads)[-1])["error"]["message"]
    deadline = time.monotonic() + RECOVERY_S
    while cluster.engine_pids("faulty") in (set(), {pid}) or not all(faulty.is_healthy() for _ in range(10)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    faulty.assert_alive()


def test_op_01_new_requests_wait_for_the_engine_or_are_told_to_try_again(cluster: Cluster, script: Application) -> None:
    os.kill(cluster.engine("script").pid, signal.SIGKILL)
    deadline = time.monotonic() + NEW_REQUESTS_S
    while True:
        response = script.post("/v1/completions", {"prompt": "x V", "temperature": 0}, timeout_s=NEW_REQUESTS_S)
        assert time.monotonic() < deadline
        if response.status_code == 200:
            break
        assert response.status_code == 503                 # while the dead engine's replica says its last words
        time.sleep(float(response.headers["retry-after"]))
    assert response.json()["choices"][0]["text"] == " UNO DUE TRE"


def test_a_replica_that_dies_takes_its_engine_along_and_both_come_back(cluster: Cluster, rand: Application) -> None:
    replica, engine = cluster.replica("rand", "LLMServer"), cluster.engine("rand")
    os.kill(replica.pid, signal.SIGKILL)
    deadline = time.monotonic() + RECOVERY_S
    while any(actor.actor_id == engine.actor_id for actor in cluster.actors("EngineActor")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    response = rand.post("/v1/completions", {"prompt": "abc", "max_tokens": 4}, timeout_s=RECOVERY_S)
    assert response.status_code == 200
    assert num_gpus(cluster.engine("rand")) == 1


def test_an_ingress_that_dies_has_its_requests_aborted(cluster: Cluster, faulty: Application) -> None:
    reason = ("conveyor_requests_finished_total", 'reason="abort"')
    num_aborted = faulty.metric(*reason)
    body = {"prompt": "x L", "max_tokens": 1900, "n": 8, "temperature": 0}
    with pytest.raises(httpx.TransportError), open_stream(faulty, "/v1/completions", body) as payloads:
        next(payloads)
        os.kill(cluster.replica("faulty", "Ingress").pid, signal.SIGKILL)
        error = json.loads(list(payloads)[-1])["error"]
        raise httpx.ReadError(error["message"])            # or Serve's proxy could still say so itself
    deadline = time.monotonic() + RECOVERY_S
    while not faulty.is_healthy():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while faulty.metric(*reason) != num_aborted + 8:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    faulty.assert_alive()
