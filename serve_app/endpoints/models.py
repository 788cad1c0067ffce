"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.service import Service, service_of


async def list_models(http: Request) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [_model(service_of(http))]})


async def retrieve_model(http: Request) -> JSONResponse:
    service = service_of(http)
    service.check_model(http.path_params["model"])
    return JSONResponse(_model(service))


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.model, "object": "model", "created": service.created_s, "owned_by": "conveyor"}
