"""What Serve's HTTP proxy does our way: it listens with SO_REUSEADDR alone, and clients cannot steer it by headers.

Serve offers both SO_REUSEADDR and SO_REUSEPORT, or neither. With both, a second server of the same user listens on the
same port and the two answer in turn. With neither, connections of a stopped server keep the port for a minute
(TIME_WAIT): a restart fails, and so would a proxy that Serve replaces.
"""

import socket

from ray.serve._private import http_util
from starlette.middleware import Middleware

from serve_app.middleware import StripHeaders


def bind_alone() -> list[Middleware]:
    """Serve calls this in the proxy before it binds (RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH)."""
    http_util.set_socket_reuse_port = _reuse_address
    return [Middleware(StripHeaders)]


def _reuse_address(sock: socket.socket) -> bool:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True
