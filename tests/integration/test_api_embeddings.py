"""A tiny encoder on the cluster: embeddings, scores and rankings over real HTTP, the openai client included."""

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from ray import serve
from transformers import PreTrainedModel

from serve_app.app import build_app
from serve_app.config import AppConfig
from tests.helpers_encoders import bert_config, reference_hidden, save_encoder, write_word_tokenizer
from tests.integration.asking import settles
from tests.integration.conftest import Application, Cluster

pytestmark = pytest.mark.integration

MODULES = [
    {"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}, {"path": "", "type": "Normalize"},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed")
    write_word_tokenizer(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return save_encoder(folder, bert_config())


@pytest.fixture(scope="module")
def embed(cluster: Cluster, folder: Path, model: PreTrainedModel) -> Iterator[Application]:
    """Beside the applications of other files, and gone when this one is done: it takes a CPU."""
    config = AppConfig(model=str(folder), served_model_name="embed", device="cpu", num_threads=1)
    serve.run(build_app(config), name="embed", route_prefix="/embed")
    yield Application("embed", f"{cluster.url}/embed")
    serve.delete("embed")


def vector_of(model: PreTrainedModel, *words: int) -> torch.Tensor:
    return torch.nn.functional.normalize(reference_hidden(model, [2, *words, 3]).mean(0), dim=0)


def vectors(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [entry["embedding"] for entry in data]


async def test_the_openai_client_gets_the_model_s_own_vectors(embed: Application, model: PreTrainedModel) -> None:
    async with openai.AsyncOpenAI(base_url=f"{embed.url}/v1", api_key="none", max_retries=0) as api:
        answer = await api.embeddings.create(model="embed", input=["w5 w6 w7", "w8"])
        short = await api.embeddings.create(model="embed", input="w5 w6 w7", dimensions=16)
        with pytest.raises(openai.BadRequestError) as refusal:
            await api.chat.completions.create(model="embed", messages=[{"role": "user", "content": "w5"}])
    assert refusal.value.code == "unsupported_task"
    expected = torch.stack([vector_of(model, 5, 6, 7), vector_of(model, 8)])
    found = torch.tensor([entry.embedding for entry in answer.data])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 8
    cut = torch.nn.functional.normalize(expected[0, :16], dim=0)
    torch.testing.assert_close(torch.tensor(short.data[0].embedding), cut, atol=1e-5, rtol=0)


def test_every_form_of_input_and_encoding(embed: Application) -> None:
    def ask(input_: object, **fields: Any) -> list[Any]:
        return vectors(embed.post("/v1/embeddings", {"model": "embed", "input": input_, **fields}))

    whole, other = ask(["w5 w6", "w9"])
    assert ask("w5 w6") == ask([2, 5, 6, 3]) == [whole]
    assert ask([[2, 9, 3], [2, 5, 6, 3]]) == [other, whole]
    (packed,) = ask("w5 w6", encoding_format="base64")
    assert list(struct.unpack("<64f", base64.b64decode(packed))) == whole


@pytest.mark.parametrize(
    "body",
    [
        {"input": ""}, {"input": []}, {"input": [256]}, {"input": [-1]}, {"input": "w5 " * 127},
        {"encoding_format": "hex", "input": "w5"}, {"dimensions": 65, "input": "w5"},
    ],
)  # fmt: skip
def test_va_02_va_10_bad_requests_leave_the_server_unharmed(embed: Application, body: dict[str, Any]) -> None:
    response = embed.post("/v1/embeddings", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(iter(body))
    assert vectors(embed.post("/v1/embeddings", {"input": "w5"}))
    assert embed.is_healthy()


async def test_many_clients_at_once_get_what_each_gets_alone(embed: Application) -> None:
    texts = [" ".join(f"w{4 + (i * j) % 200}" for j in range(1, i % 50 + 2)) for i in range(100)]
    async with httpx.AsyncClient(timeout=60) as client:
        answers = await asyncio.gather(
            *(client.post(f"{embed.url}/v1/embeddings", json={"input": text}) for text in texts)
        )
    together = vectors(embed.post("/v1/embeddings", {"input": texts}))
    assert [vectors(answer)[0] for answer in answers] == together
    assert settles(lambda: embed.metric("conveyor_requests_finished_total", 'reason="stop"') >= 200)
    assert settles(lambda: embed.metric("conveyor_num_requests_waiting") == 0)


def test_scores_and_rankings(embed: Application, model: PreTrainedModel) -> None:
    documents = ["w9", "w5 w6", "w5 w7 w8"]
    score = embed.post("/v1/score", {"model": "embed", "text_1": "w5 w6", "text_2": documents}).json()
    query = vector_of(model, 5, 6)
    expected = [float(query @ vector_of(model, *words)) for words in ((9,), (5, 6), (5, 7, 8))]
    assert [entry["score"] for entry in score["data"]] == pytest.approx(expected, abs=1e-5)
    ask = {"model": "embed", "query": "w5 w6", "documents": documents, "top_n": 2}
    results = embed.post("/v1/rerank", ask).json()["results"]
    best = sorted(range(3), key=lambda index: -expected[index])[:2]
    assert [(result["index"], result["document"]["text"]) for result in results] == [(i, documents[i]) for i in best]
    assert results[0]["relevance_score"] == pytest.approx(1, abs=1e-6)
