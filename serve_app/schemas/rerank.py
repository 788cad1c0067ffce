"""What clients send to /v1/rerank, in the shape of Jina and Cohere."""

from pydantic import Field

from serve_app.limits import RequestLimits
from serve_app.schemas.base import RequestBody, beyond
from serve_app.schemas.encoding import EncodingFields


class Document(RequestBody):
    text: str


class RerankRequest(EncodingFields):
    query: str = Field(min_length=1, description="what documents are to match")
    documents: list[str | Document] = Field(min_length=1, description="texts, or objects with a field text")
    top_n: int = Field(0, ge=0, description="documents to return; 0, or more than there are: all")
    return_documents: bool = Field(True, description="whether results hold their documents' texts")

    def check_limits(self, limits: RequestLimits) -> None:
        if len(self.documents) > limits.max_prompts:
            raise beyond("documents", limits.max_prompts, "texts")

    @property
    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.query, text) for text in self.texts]
