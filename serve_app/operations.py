"""Every endpoint with its path, its handler and the schema of its body: routes and OpenAPI come from here."""

from serve_app.endpoints.chat import chat_completions
from serve_app.endpoints.completions import completions
from serve_app.endpoints.docs import docs
from serve_app.endpoints.embeddings import embeddings
from serve_app.endpoints.health import health
from serve_app.endpoints.metrics import metrics
from serve_app.endpoints.models import list_models, retrieve_model
from serve_app.endpoints.openapi import openapi_document
from serve_app.endpoints.ready import ready
from serve_app.endpoints.rerank import rerank
from serve_app.endpoints.score import score
from serve_app.endpoints.tokenize import detokenize, tokenize
from serve_app.endpoints.version import version
from serve_app.openapi import Operation
from serve_app.schemas.chat import ChatRequest
from serve_app.schemas.completions import CompletionRequest
from serve_app.schemas.embeddings import EmbeddingsRequest
from serve_app.schemas.rerank import RerankRequest
from serve_app.schemas.score import ScoreRequest
from serve_app.schemas.tokenize import DetokenizeRequest, TokenizeRequest

OPERATIONS: tuple[Operation, ...] = (
    Operation("POST", "/v1/chat/completions", chat_completions, "Answer a conversation", ChatRequest, streams=True),
    Operation("POST", "/v1/completions", completions, "Continue a prompt", CompletionRequest, streams=True),
    Operation("POST", "/v1/embeddings", embeddings, "Vectors of texts", EmbeddingsRequest),
    Operation("POST", "/v1/score", score, "How well pairs of texts match", ScoreRequest),
    Operation("POST", "/v1/rerank", rerank, "Documents by how well they match a query", RerankRequest),
    Operation("POST", "/tokenize", tokenize, "Token ids of a text or a conversation", TokenizeRequest),
    Operation("POST", "/detokenize", detokenize, "The text of token ids", DetokenizeRequest),
    Operation("GET", "/v1/models", list_models, "The models served here"),
    Operation("GET", "/v1/models/{model}", retrieve_model, "One model"),
    Operation("GET", "/health", health, "Whether some replica's step loop comes round"),
    Operation("GET", "/ready", ready, "Whether new requests are taken"),
    Operation("GET", "/version", version, "The version of this server"),
    Operation("GET", "/metrics", metrics, "Every replica's statistics, for Prometheus", content="text/plain"),
    Operation("GET", "/openapi.json", openapi_document, "This description"),
    Operation("GET", "/docs", docs, "This description, to read", content="text/html"),
)
