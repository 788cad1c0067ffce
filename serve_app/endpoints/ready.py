"""GET /ready: 200 while new requests would be taken: some replica lives and this ingress is not shutting down."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.service import service_of


async def ready(http: Request) -> JSONResponse:
    if service_of(http).fleet.is_healthy:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready"}, HTTPStatus.SERVICE_UNAVAILABLE)
