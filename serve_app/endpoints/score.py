"""POST /v1/score."""

from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.encoding import scores_of, usage
from serve_app.schemas.score import ScoreRequest
from serve_app.service import Identity, service_of


async def score(http: Request) -> JSONResponse:
    service = service_of(http)
    body = ScoreRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    stats = await service.ready("score", "embed")
    identity = Identity.new("score", service.model)
    scores = await scores_of(http, service, identity, stats, body, body.pairs(), ("text_1", "text_2"))
    return JSONResponse(
        {
            "id": identity.id,
            "object": "list",
            "created": identity.created_s,
            "model": identity.model,
            "data": [
                {"index": index, "object": "score", "score": value} for index, value in enumerate(scores.values)
            ],
            "usage": usage(scores.num_tokens),
        }
    )
