"""GET /openapi.json."""

from importlib import metadata

from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.openapi import describe


async def openapi_document(http: Request) -> JSONResponse:
    return JSONResponse(describe(http.app.state.operations, metadata.version("conveyor")))
