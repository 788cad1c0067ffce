import os
import socket

import pytest

from engine.api import ConfigError
from serve_app.launcher.ports import check_free, claim, free_port


def bound(*, reuse_port: bool = False) -> socket.socket:
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse_port))
    holder.bind(("127.0.0.1", 0))
    return holder


def port_of(holder: socket.socket) -> int:
    return int(holder.getsockname()[1])


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_listener_is_named_even_if_it_would_share(reuse_port):
    with bound(reuse_port=reuse_port) as holder:
        holder.listen()
        owner = rf"port {port_of(holder)} on 127\.0\.0\.1 is in use by process {os.getpid()} "
        with pytest.raises(ConfigError, match=owner):
            check_free("127.0.0.1", port_of(holder))


def test_a_bound_socket_that_does_not_listen_is_seen():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigError, match="is in use"):
            check_free("127.0.0.1", port_of(holder))


def test_time_wait_of_an_earlier_server_is_no_obstacle():
    with bound() as server:
        server.listen()
        port = port_of(server)
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()            # the side that closes first lingers
            assert client.recv(1) == b""
    check_free("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.77 port 8000: "):
        check_free("192.0.2.77", 8000)


def test_a_claim_is_seen_before_anything_listens_and_ends_with_its_holder():
    with bound() as holder:
        port = port_of(holder)
    with claim(port), pytest.raises(ConfigError, match=rf"starting or running \(process {os.getpid()}\)"):
        claim(port)
    claim(port).close()


def test_a_free_port_is_none_that_the_system_gives_away():
    """Between the choice and the bind a minute passes, in which Ray asks for dozens of ports."""
    with bound() as holder:
        first_given = min(port_of(holder), 32_768)
    chosen = {free_port() for _ in range(20)}
    assert len(chosen) > 1
    assert all(20_000 <= port < first_given for port in chosen)
    for port in chosen:
        check_free("127.0.0.1", port)


def test_a_free_port_is_not_in_use(monkeypatch):
    monkeypatch.setattr("serve_app.launcher.ports._first_ephemeral_port", lambda: 20_002)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 20_000))
        assert free_port() == 20_001
