"""GET /metrics: every replica's stats in the Prometheus text format."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from serve_app.metrics import exposition
from serve_app.service import service_of


async def metrics(http: Request) -> Response:
    service = service_of(http)
    return Response(exposition(service.fleet.stats(), service.model), media_type=CONTENT_TYPE_LATEST)
