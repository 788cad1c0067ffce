"""DrainGate: counts the requests that run in one ingress replica and, once told to drain, refuses new ones."""

from dataclasses import dataclass

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.errors import unavailable

OPEN_WHILE_DRAINING = frozenset({"/metrics"})


@dataclass(slots=True)
class DrainGate:
    """The state, shared by the ASGI side and the methods that the launcher calls."""

    num_running: int = 0
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class PassGate:
    """Pure ASGI middleware: every request passes `gate` or is answered 503."""

    app: ASGIApp
    gate: DrainGate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.gate.is_draining and scope["path"] not in OPEN_WHILE_DRAINING:
            answer = unavailable("the server is shutting down")
            return await JSONResponse(answer.body(), answer.status, answer.headers)(scope, receive, send)
        self.gate.num_running += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.gate.num_running -= 1
