"""What goes into an encoder: a text as token ids. A frozen value."""

from dataclasses import dataclass

from engine.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One text to encode or, for a cross-encoder, one pair of texts."""

    request_id: str
    prompt_token_ids: tuple[int, ...]              # special tokens included
    token_type_ids: tuple[int, ...] = ()           # as many: which of two texts a token belongs to; empty: all 0
    dimensions: int | None = None                  # leading numbers of the vector to keep; None: all
    tenant: str | None = None                      # tenants take turns


EngineRequest = GenerationRequest | EmbeddingRequest
