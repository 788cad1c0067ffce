"""Raw bytes: half requests, garbage, header bombs. Whatever comes, the server answers the next client."""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.conftest import Application

pytestmark = pytest.mark.integration

BODY = b'{"prompt":"x V","max_tokens":2,"temperature":0}'


def speak(application: Application, *pieces: bytes, leave: bool = False) -> bytes:
    """Sends the pieces one by one over a connection of its own; returns the answer, or what came before leaving."""
    url = urlsplit(application.url)
    assert url.port is not None
    said = b""
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            if leave:
                with suppress(OSError):                    # the server may have left before
                    connection.shutdown(socket.SHUT_WR)
            while b"\r\n\r\n" not in said and (received := connection.recv(65536)):
                said += received
        except ConnectionError:
            pass
    return said


def head(application: Application, length: int, *headers: bytes, path: str = "/v1/completions") -> bytes:
    lines = [f"POST {urlsplit(application.url).path}{path} HTTP/1.1".encode(), b"Host: test", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""])


def test_a_body_in_pieces_is_put_together(script: Application) -> None:
    request = head(script, len(BODY), b"Connection: close") + BODY
    said = speak(script, *(request[i : i + 7] for i in range(0, len(request), 7)))
    assert b"200" in said.split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [0, 1, len(BODY) - 1])
def test_half_a_body_holds_nothing_up(script: Application, sent: int) -> None:
    speak(script, head(script, len(BODY)) + BODY[:sent], leave=True)
    script.assert_alive()


def test_a_body_that_is_announced_too_large_is_refused_unread(script: Application) -> None:
    assert b"413" in speak(script, head(script, 10**10)).split(b"\r\n")[0]
    script.assert_alive()


def test_many_headers_and_long_ones(script: Application) -> None:
    speak(script, head(script, len(BODY), *(b"x-%d: y" % i for i in range(5000))) + BODY, leave=True)
    speak(script, head(script, len(BODY), b"x-long: " + b"y" * 500_000) + BODY, leave=True)
    script.assert_alive()


def test_garbage_behind_a_request_does_not_reach_the_next_client(script: Application) -> None:
    request = head(script, len(BODY)) + BODY
    said = speak(script, request + b"\x00\xff GARBAGE / HTTP/9.9\r\n\r\n" + request)
    assert said.split(b" ")[1] in (b"200", b"400")
    script.assert_alive()


@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.binary(max_size=200) | st.sampled_from([BODY, b"\r\n", b"\r\n\r\n", b"POST ", b"{"]), max_size=6))
def test_any_bytes_are_survived(script: Application, pieces: list[bytes]) -> None:
    said = speak(script, *pieces, leave=True)
    assert b" 500 " not in said.split(b"\r\n")[0]
    said = speak(script, head(script, sum(map(len, pieces)), b"Content-Type: application/json"), *pieces)
    assert said.split(b" ")[1] in (b"200", b"400"), said[:200]


def test_the_server_is_unharmed(script: Application) -> None:
    script.assert_alive()
