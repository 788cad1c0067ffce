"""POST /v1/embeddings."""

import base64
import json
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from engine.api import RequestOutput, Tokenizer
from serve_app.encoding import EncodedText, check_lengths, encode, encoded, usage
from serve_app.schemas.embeddings import EmbeddingsRequest
from serve_app.service import Identity, service_of


async def embeddings(http: Request) -> Response:
    service = service_of(http)
    body = EmbeddingsRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    stats = await service.ready("embed")
    max_length = body.max_length(stats.max_model_len)
    texts = await service.in_pool(_encoded, service.tokenizer, body, max_length)
    check_lengths(texts, stats.max_model_len)
    identity = Identity.new("embd", service.model)
    outputs = await encode(http, service, identity, texts, dimensions=body.dimensions, tenant=body.user)
    # Some 2000 vectors of 1000 numbers take a second to write: not the event loop's.
    content = await service.in_pool(_answer, outputs, body.encoding_format, service.model)
    return Response(content, media_type="application/json")


def _encoded(tokenizer: Tokenizer, body: EmbeddingsRequest, max_length: int | None) -> list[EncodedText]:
    return [
        encoded(tokenizer, text, max_length, f"input[{index}]", special_tokens=body.add_special_tokens)
        for index, text in enumerate(body.input)
    ]


def _answer(outputs: Sequence[RequestOutput], encoding_format: str, model: str) -> bytes:
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(output.vector).decode()
            if encoding_format == "base64" else output.vector_values().tolist(),
        }
        for index, output in enumerate(outputs)
    ]  # fmt: skip
    answer = {"object": "list", "data": data, "model": model, "usage": usage(outputs)}
    return json.dumps(answer, separators=(",", ":")).encode()
