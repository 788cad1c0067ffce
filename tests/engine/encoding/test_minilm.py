"""The packaged MiniLM against sentence-transformers' own steps in transformers, to 1e-5."""

import pytest
import torch

from engine.api import EmbeddingRequest, create_engine, load_tokenizer, preflight
from engine.config import EngineConfig
from engine.errors import ConfigError
from tests.helpers_minilm import SENTENCES, minilm_path, reference_vectors

pytestmark = pytest.mark.demo


async def test_vectors_equal_sentence_transformers(tmp_path):
    tokenizer = load_tokenizer(minilm_path())
    engine = create_engine(EngineConfig(model="minilm", device="cpu", num_threads=1))
    await engine.start()
    stats = engine.stats()
    assert (stats.task, stats.model, stats.vector_size, stats.max_model_len) == (
        "embed", "all-MiniLM-L6-v2", 384, 256,
    )  # fmt: skip
    vectors = []
    for index, sentence in enumerate(SENTENCES):
        token_ids, token_types = tokenizer.encode_whole(sentence, max_length=stats.max_model_len)
        output = await engine.embed(EmbeddingRequest(str(index), tuple(token_ids), tuple(token_types)))
        vectors.append(torch.tensor(output.vector_values()))
    await engine.shutdown()
    torch.testing.assert_close(torch.stack(vectors), reference_vectors(SENTENCES), atol=1e-5, rtol=0)


def test_preflight_tells_what_it_is():
    minilm_path()
    report = preflight(EngineConfig(model="minilm", device="cpu"))
    assert (report.task, report.dtype, report.max_model_len, report.kv_bytes) == ("embed", "float32", 256, 0)
    assert 90e6 < report.weights_bytes < 100e6
    assert preflight(EngineConfig(model="minilm", device="cpu", max_model_len=512)).max_model_len == 512


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"scheduler": {"policy": "orca"}}, "scheduler.policy: the model is an encoder"),
        ({"scheduler": {"policy": "chunked", "watermark": 0.1}}, "scheduler.watermark: the model"),
        ({"kv_cache": {"capacity_tokens": 100}}, "kv_cache.capacity_tokens: the model is an encoder"),
        ({"kv_cache": {"block_size": 16}}, "kv_cache.block_size"),
        ({"trace": "trace.jsonl"}, "trace: the model is an encoder"),
        ({"max_model_len": 513}, "exceeds the model's context of 512"),
        ({"kv_cache": {"memory_fraction": 0.001}}, "does not fit: it needs weights .* MiB"),
    ],
)
def test_settings_that_mean_nothing_for_it_are_refused(settings, cause):
    minilm_path()
    with pytest.raises(ConfigError, match=cause):
        preflight(EngineConfig(model="minilm", device="cpu", **settings))
