"""POST /tokenize and /detokenize: what the model sees of a text, and back."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from engine.api import Tokenizer
from serve_app.endpoints.chat import rendered
from serve_app.schemas.tokenize import DetokenizeRequest, TokenizeRequest
from serve_app.service import service_of


async def tokenize(http: Request) -> JSONResponse:
    service = service_of(http)
    body = TokenizeRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    stats = await service.fleet.ready()
    answer = await service.in_pool(_tokenized, service.tokenizer, body)
    return JSONResponse(answer | {"max_model_len": stats.max_model_len})


async def detokenize(http: Request) -> JSONResponse:
    service = service_of(http)
    body = DetokenizeRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    text = await service.in_pool(_detokenized, service.tokenizer, body)
    return JSONResponse({"prompt": text})


def _tokenized(tokenizer: Tokenizer, body: TokenizeRequest) -> dict[str, Any]:
    if body.prompt is None:
        text, add_special_tokens = rendered(tokenizer, body, body.tools), bool(body.add_special_tokens)
    else:
        text, add_special_tokens = body.prompt, body.add_special_tokens is not False
    token_ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    spelled = [tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in token_ids]
    return {"count": len(token_ids), "tokens": token_ids, "token_strs": spelled if body.return_token_strs else None}


def _detokenized(tokenizer: Tokenizer, body: DetokenizeRequest) -> str:
    return tokenizer.decode(body.tokens, skip_special_tokens=False)
