"""Encoders from a folder to an engine: what they are, what they need, what they answer."""

import json

import pytest
import torch

from engine.api import EmbeddingRequest, create_engine, preflight
from engine.build import plan_engine
from engine.config import EngineConfig
from engine.encoding.build import plan_encoder
from engine.errors import ConfigError
from engine.outputs import EngineStats
from tests.engine.model.encoders import describe
from tests.helpers_encoders import (
    bert_config,
    modernbert_config,
    reference_hidden,
    save_encoder,
    text,
    write_word_tokenizer,
)

NORMALIZED = [{"path": "", "type": "models.Transformer"}, {"path": "", "type": "models.Normalize"}]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))


async def answers(folder, *texts) -> tuple[EngineStats, list[torch.Tensor]]:
    engine = create_engine(EngineConfig(model=str(folder), device="cpu", num_threads=1))
    await engine.start()
    outputs = [await engine.embed(EmbeddingRequest(str(i), tuple(ids))) for i, ids in enumerate(texts)]
    stats = engine.stats()
    await engine.shutdown()
    return stats, [torch.tensor(output.vector_values()) for output in outputs]


async def test_an_encoder_embeds(tmp_path):
    write_word_tokenizer(tmp_path)
    reference = save_encoder(tmp_path, bert_config())
    (tmp_path / "modules.json").write_text(json.dumps(NORMALIZED))
    stats, (short, long) = await answers(tmp_path, text(3), text(100))
    assert (stats.task, stats.vector_size, stats.max_model_len) == ("embed", 64, 128)
    for ids, vector in ((text(3), short), (text(100), long)):
        expected = torch.nn.functional.normalize(reference_hidden(reference, ids).mean(0), dim=0)
        torch.testing.assert_close(vector, expected, atol=1e-6, rtol=0)


async def test_a_cross_encoder_scores(tmp_path):
    write_word_tokenizer(tmp_path)
    reference = save_encoder(tmp_path, modernbert_config(num_labels=1), classifier=True)
    stats, (score,) = await answers(tmp_path, text(30))
    assert (stats.task, stats.vector_size) == ("score", 0)
    with torch.inference_mode():
        expected = reference(torch.tensor([text(30)])).logits[0].sigmoid()
    torch.testing.assert_close(score, expected, atol=1e-5, rtol=0)
    assert preflight(EngineConfig(model=str(tmp_path), device="cpu")).task == "score"


def test_memory_is_planned_for_the_longest_text_and_for_a_full_step(tmp_path):
    save_encoder(tmp_path, bert_config(max_position_embeddings=2048))
    description = describe(tmp_path)

    def working(**scheduler):
        plan = plan_encoder(EngineConfig(model=str(tmp_path), scheduler=scheduler), description)
        return plan.limits.max_num_batched_tokens, plan.working_bytes

    assert [working(max_num_batched_tokens=n)[0] for n in (100, 4096)] == [100, 4096]
    assert working(max_num_batched_tokens=100)[1] == working(max_num_batched_tokens=2048)[1]
    assert working(max_num_batched_tokens=4096)[1] > working(max_num_batched_tokens=2048)[1]


def test_it_is_no_model_for_the_other_engine(tmp_path):
    save_encoder(tmp_path, bert_config())
    with pytest.raises(ConfigError, match="is an encoder; it generates no text"):
        plan_engine(EngineConfig(model=str(tmp_path), device="cpu"))
