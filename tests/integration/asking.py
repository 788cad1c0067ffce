"""Asking: what tests of the API send, wait for and read more than once."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.integration.conftest import Application

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SETTLE_S = 2.0
POLL_S = 1.0                                               # every ingress replica has heard of the engine by then
_SPECIAL = {"<|im_end|>": 256, "<|im_start|>": 257}        # of the tiny tokenizer without pieces


def at_once(application: Application, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(application.complete, bodies))


@contextmanager
def left_open(application: Application, body: dict[str, Any]) -> Iterator[None]:
    """A completion whose answer nobody reads; the client leaves at the end."""
    content, url = json.dumps(body).encode(), urlsplit(application.url)
    assert url.port is not None
    with socket.create_connection((url.hostname, url.port)) as connection:
        head = f"POST {url.path}{COMPLETIONS} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n"
        steering = "x-request-disconnect-disabled: ?1\r\n\r\n"   # which a client has no business to set
        connection.sendall((head + steering).encode() + content)
        yield


def tokens_of(answer: dict[str, Any]) -> list[str]:
    tokens: list[str] = answer["choices"][0]["logprobs"]["tokens"]
    return tokens


def spelled(token_ids: list[int]) -> list[str]:
    """Token ids as the API spells them in logprobs; ids below 256 are bytes."""
    special = {token_id: text for text, token_id in _SPECIAL.items()}
    return [special.get(i) or (chr(i) if i < 128 else f"bytes:\\x{i:02x}") for i in token_ids]


def settles(condition: Callable[[], bool], within_s: float = SETTLE_S) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_idle(application: Application) -> bool:
    gauges = ("conveyor_num_requests_running", "conveyor_num_requests_waiting", "conveyor_kv_blocks_used")
    return all(application.metric(gauge) == 0 for gauge in gauges)


def settled(application: Application, counter: str, within_s: float = SETTLE_S) -> float:
    """A counter once the application has nothing to do and every ingress replica has heard of it."""
    settle(application, within_s)
    return application.metric(counter)


def settle(application: Application, within_s: float = SETTLE_S) -> None:
    """Waits until the application has nothing to do, and every ingress replica has heard of it."""
    assert settles(lambda: is_idle(application), within_s)
    time.sleep(POLL_S)                                     # no client can ask what each ingress has heard last


def strict_json(response: httpx.Response) -> Any:
    """The body, which must not hold NaN or infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {response.text}")

    return json.loads(response.text, parse_constant=refuse)


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error object of a request that is expected to be refused, streamed or not."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error
