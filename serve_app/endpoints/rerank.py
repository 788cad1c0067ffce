"""POST /v1/rerank."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.encoding import scores_of, usage
from serve_app.schemas.rerank import RerankRequest
from serve_app.service import Identity, service_of


async def rerank(http: Request) -> JSONResponse:
    service = service_of(http)
    body = RerankRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    stats = await service.ready("score", "embed")
    identity = Identity.new("rerank", service.model)
    scores = await scores_of(http, service, identity, stats, body, body.pairs(), ("query", "documents"))
    return JSONResponse(
        {
            "id": identity.id,
            "object": "list",
            "model": identity.model,
            "results": _results(body, scores.values),
            "usage": usage(scores.num_tokens),
        }
    )


def _results(body: RerankRequest, scores: list[float]) -> list[dict[str, Any]]:
    """The best first; equals in the order in which they were sent."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
    texts = body.texts
    return [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in ranked
    ]
