"""GET /version."""

from importlib import metadata

from starlette.requests import Request
from starlette.responses import JSONResponse


async def version(http: Request) -> JSONResponse:
    return JSONResponse({"version": metadata.version("conveyor")})
