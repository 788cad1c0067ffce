"""Encoding for one client request: what embeddings, scores and rankings do between their request and their response."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request

from engine.api import ContextTooLong, EmbeddingRequest, EngineStats, RequestOutput, Tokenizer
from serve_app.generation import collect
from serve_app.schemas.encoding import EncodingFields
from serve_app.service import Identity, Service


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text, or a pair of texts, as the model takes it."""

    token_ids: tuple[int, ...]
    token_types: tuple[int, ...] = ()
    name: str = "input"                                # of the field that it came in


@dataclass(frozen=True, slots=True)
class Scores:
    """How well pairs of texts match, and the tokens that it took to find out."""

    values: list[float]
    num_tokens: int


async def encode(
    http: Request, service: Service, identity: Identity, texts: Sequence[EncodedText], *, dimensions: int | None = None,
    tenant: str | None = None,
) -> list[RequestOutput]:  # fmt: skip
    """The engine's output for each of `texts`, in their order. Raises what `generation.collect` raises."""
    requests = tuple(
        EmbeddingRequest(f"{identity.id}-{index}", text.token_ids, text.token_types, dimensions, tenant)
        for index, text in enumerate(texts)
    )
    return await collect(http, service.replicas, requests, service.request_timeout_s)


async def scores_of(
    http: Request, service: Service, identity: Identity, stats: EngineStats, body: EncodingFields,
    pairs: Sequence[tuple[str, str]], names: tuple[str, str],
) -> Scores:  # fmt: skip
    """The scores of `pairs`, whose texts came in the fields `names`.

    A cross-encoder reads the two texts of a pair together. Of a model that encodes texts one by one it is the cosine
    of their vectors, as in vLLM, and a text that occurs in several pairs is encoded once.
    """
    max_length = body.max_length(stats.max_model_len)
    if stats.task == "score":
        texts = await service.in_pool(_encoded_pairs, service.tokenizer, pairs, max_length, names[1])
    else:
        texts = await service.in_pool(_encoded_texts, service.tokenizer, pairs, max_length, names)
    check_lengths(texts, stats.max_model_len)
    outputs = await encode(http, service, identity, texts, tenant=body.user)
    num_tokens = sum(output.num_prompt_tokens for output in outputs)
    if stats.task == "score":
        return Scores([output.vector_values()[0] for output in outputs], num_tokens)
    return Scores(await service.in_pool(_cosines, pairs, outputs), num_tokens)


def encoded(
    tokenizer: Tokenizer, text: str | Sequence[int], max_length: int | None, name: str, *, special_tokens: bool = True
) -> EncodedText:
    """`text` as the model takes it; token ids are taken as they are, but for their number."""
    if isinstance(text, str):
        token_ids, token_types = tokenizer.encode_whole(
            text, max_length=max_length, add_special_tokens=special_tokens
        )
        return EncodedText(tuple(token_ids), tuple(token_types), name)
    return EncodedText(tuple(text[:max_length]), (), name)


def check_lengths(texts: Sequence[EncodedText], max_model_len: int) -> None:
    """Raises ContextTooLong for the first text that is longer than the model takes."""
    for text in texts:
        if len(text.token_ids) > max_model_len:
            raise ContextTooLong(
                f"{text.name} has {len(text.token_ids)} tokens; the model takes at most {max_model_len}; "
                f"truncate_prompt_tokens cuts longer texts",
                param=text.name.partition("[")[0],
            )


def usage(outputs: Sequence[RequestOutput] | int) -> dict[str, Any]:
    """The `usage` object of `outputs`, or of a number of tokens."""
    num_tokens = outputs if isinstance(outputs, int) else sum(output.num_prompt_tokens for output in outputs)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _encoded_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_length: int | None, name: str
) -> list[EncodedText]:
    texts = []
    for index, (first, second) in enumerate(pairs):
        token_ids, token_types = tokenizer.encode_whole(first, second, max_length=max_length)
        texts.append(EncodedText(tuple(token_ids), tuple(token_types), f"{name}[{index}]"))
    return texts


def _encoded_texts(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_length: int | None, names: tuple[str, str]
) -> list[EncodedText]:
    """Every distinct text once, in the order of `_distinct`."""
    field_of = {text: name for pair in reversed(pairs) for text, name in zip(pair, names, strict=True)}
    return [encoded(tokenizer, text, max_length, field_of[text]) for text in _distinct(pairs)]


def _distinct(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(text for pair in pairs for text in pair))


def _cosines(pairs: Sequence[tuple[str, str]], outputs: Sequence[RequestOutput]) -> list[float]:
    vectors = {}
    for text, output in zip(_distinct(pairs), outputs, strict=True):
        vector = np.asarray(output.vector_values(), np.float64)
        length = float(np.sqrt(vector @ vector))
        vectors[text] = vector / length if length > 0 else vector
    return [float(vectors[first] @ vectors[second]) for first, second in pairs]
