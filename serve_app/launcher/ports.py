"""The HTTP port: whether it is free, who has it, and a claim on it that a second launcher sees at once."""

import errno
import random
import socket
import struct
from pathlib import Path

import psutil

from engine.api import ConfigError

HAPROXY_PORTS = (8404, 9101)      # its statistics and metrics
# Above the ports that Ray's workers choose from. Below those that the system gives to whoever asks for any: a port
# that is free now and is bound a minute later must be none that Ray or a client's connection may be given meanwhile.
_FIRST_CHOSEN_PORT = 20_000
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_free(host: str, port: int) -> None:
    """Raises ConfigError unless Serve's HTTP proxy can listen on `port` of `host` alone.

    Bound without SO_REUSEPORT, for with it two servers can listen on one port and answer in turn; and with
    SO_REUSEADDR, for connections of an earlier server may linger in TIME_WAIT.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"http_options: cannot listen on {host} port {port}: {error.strerror}") from None
        raise ConfigError(
            f"port {port} on {host} is in use{_owner(port)}; stop that server, or choose another port with --port"
        ) from None


def free_port() -> int:
    """A port of the loopback that nothing uses now, and that nothing is given unless it asks for that very one."""
    candidates = range(_FIRST_CHOSEN_PORT, _first_ephemeral_port())
    for port in random.SystemRandom().sample(candidates, len(candidates)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigError(f"no port in [{candidates.start}, {candidates.stop}) is free on 127.0.0.1")


def _first_ephemeral_port() -> int:
    """The first port the system gives to a socket that names none; Linux's default where it does not tell."""
    try:
        first = int(_EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        first = 32_768
    return first if first > _FIRST_CHOSEN_PORT else 32_768


def claim(port: int) -> socket.socket:
    """A claim on `port` from now until the process ends, visible before Serve listens, which takes half a minute.

    It is a name in Linux's abstract socket namespace: nothing on disk, and gone however the process dies.
    """
    claimed = socket.socket(socket.AF_UNIX)
    name = f"\0conveyor-port-{port}"
    try:
        claimed.bind(name)
    except OSError:
        raise ConfigError(
            f"port {port} is in use by a conveyor that is starting or running{_claimant(name)}; "
            "stop it or choose another port with --port"
        ) from None
    claimed.listen()
    return claimed


def _owner(port: int) -> str:
    """` by process 12 (nginx)`, or nothing where the system does not tell."""
    try:
        for connection in psutil.net_connections("tcp"):
            is_listener = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if is_listener and connection.pid is not None:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""


def _claimant(name: str) -> str:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(name)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return ""
    return f" (process {struct.unpack('3i', credentials)[0]})"
