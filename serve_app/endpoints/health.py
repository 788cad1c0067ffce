"""GET /health: 200 if and only if some replica's step loop has come round lately; answered from memory, at once."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.service import service_of


async def health(http: Request) -> JSONResponse:
    if service_of(http).fleet.is_healthy:
        return JSONResponse({"status": "healthy"})
    return JSONResponse({"status": "unhealthy"}, HTTPStatus.SERVICE_UNAVAILABLE)
