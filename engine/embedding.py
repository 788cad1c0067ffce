"""What goes into an encoder and what comes out: a text as token ids, and its vector. Frozen values."""

import sys
from array import array
from dataclasses import dataclass

from engine.outputs import RequestOutput
from engine.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One text to encode or, for a cross-encoder, one pair of texts."""

    request_id: str
    prompt_token_ids: tuple[int, ...]              # special tokens included
    token_type_ids: tuple[int, ...] = ()           # as many: which of two texts a token belongs to; empty: all 0
    dimensions: int | None = None                  # leading numbers of the vector to keep; None: all
    tenant: str | None = None                      # tenants take turns


@dataclass(frozen=True, slots=True)
class EmbeddingOutput(RequestOutput):
    """The only output of an EmbeddingRequest; it travels the way of all outputs.

    A cross-encoder's vector is one number, the score of its pair.
    """

    vector: bytes = b""                            # float32, little-endian; empty where the request failed

    def values(self) -> "array[float]":
        values = array("f", self.vector)
        if sys.byteorder == "big":
            values.byteswap()
        return values


EngineRequest = GenerationRequest | EmbeddingRequest
