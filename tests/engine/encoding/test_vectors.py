"""Texts to vectors against transformers: pooling, layers, normalisation, heads, and independence of batch mates."""

import json

import pytest
import torch
from safetensors.torch import save_file

from engine.embedding import EmbeddingRequest
from engine.encoding.build import load_encoder, vectoriser
from engine.encoding.runner import EncoderRunner
from engine.errors import ConfigError
from tests.engine.model.encoders import describe
from tests.helpers_encoders import bert_config, modernbert_config, reference_hidden, roberta_config, save_encoder, text

POOLINGS = {
    "pooling_mode_cls_token": lambda hidden: hidden[0],
    "pooling_mode_max_tokens": lambda hidden: hidden.max(0).values,
    "pooling_mode_mean_tokens": lambda hidden: hidden.mean(0),
    "pooling_mode_mean_sqrt_len_tokens": lambda hidden: hidden.sum(0) / len(hidden) ** 0.5,
    "pooling_mode_lasttoken": lambda hidden: hidden[-1],
}
TEXTS = [text(length) for length in (3, 40, 1, 17)]


def runner_of(folder, **options):
    description = describe(folder, **options)
    encoder = load_encoder(description)
    return EncoderRunner(encoder, vectoriser(encoder, description), description.device)


def requests(texts, types=None):
    types = types or [()] * len(texts)
    return [EmbeddingRequest(str(i), tuple(ids), tuple(t)) for i, (ids, t) in enumerate(zip(texts, types, strict=True))]


def write_modules(folder, kinds, pooling):
    modules = [{"path": f"{i}_{kind}" if i else "", "type": f"models.{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling(tmp_path, mode):
    reference = save_encoder(tmp_path, bert_config())
    write_modules(tmp_path, ["Transformer", "Pooling"], {mode: True})
    vectors = torch.from_numpy(runner_of(tmp_path).encode(requests(TEXTS))).float()
    expected = torch.stack([POOLINGS[mode](reference_hidden(reference, ids)) for ids in TEXTS])
    torch.testing.assert_close(vectors, expected, atol=2e-5, rtol=2e-5)


def test_several_poolings_and_a_dense_layer(tmp_path):
    reference = save_encoder(tmp_path, bert_config())
    both = dict.fromkeys(("pooling_mode_mean_tokens", "pooling_mode_cls_token"), True)
    write_modules(tmp_path, ["Transformer", "Pooling", "Dense"], both)
    layer = torch.nn.Linear(128, 24)
    (tmp_path / "2_Dense").mkdir()
    settings = {"in_features": 128, "out_features": 24, "activation_function": "torch.nn.modules.activation.Tanh"}
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(settings))
    save_file({f"linear.{k}": v for k, v in layer.state_dict().items()}, tmp_path / "2_Dense" / "model.safetensors")
    vectors = torch.from_numpy(runner_of(tmp_path).encode(requests(TEXTS))).float()
    hidden = [reference_hidden(reference, ids) for ids in TEXTS]
    expected = layer(torch.stack([torch.cat([it[0], it.mean(0)]) for it in hidden])).tanh()
    torch.testing.assert_close(vectors, expected.detach(), atol=2e-5, rtol=2e-5)


def test_a_dense_layer_of_another_shape_is_refused(tmp_path):
    save_encoder(tmp_path, bert_config())
    write_modules(tmp_path, ["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True})
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps({"in_features": 64, "out_features": 24}))
    save_file({"linear.weight": torch.zeros(24, 64)}, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor linear\.bias of shape \[24\]"):
        runner_of(tmp_path)


@pytest.mark.parametrize(
    ("config", "types"),
    [
        (bert_config(num_labels=1), [[0] * 4 + [1] * 8, [0, 1, 1]]),
        (roberta_config(num_labels=1), None),
        (modernbert_config(num_labels=1), None),
        (modernbert_config(num_labels=1, classifier_pooling="mean", classifier_bias=True, norm_bias=True), None),
    ],
)
@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_scores_of_cross_encoders(tmp_path, config, types, activation):
    config.sentence_transformers = {"activation_fn": f"torch.nn.modules.linear.{activation}"}
    reference = save_encoder(tmp_path, config, classifier=True)
    pairs = [text(12), text(3)]
    scores = torch.from_numpy(runner_of(tmp_path).encode(requests(pairs, types))).float()
    options = [{} if types is None else {"token_type_ids": torch.tensor([t])} for t in types or [None] * 2]
    with torch.inference_mode():
        expected = torch.cat(
            [reference(torch.tensor([ids]), **it).logits for ids, it in zip(pairs, options, strict=True)]
        )
    expected = expected.sigmoid() if activation == "Sigmoid" else expected
    torch.testing.assert_close(scores, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_vector_does_not_depend_on_its_batch_mates_to_the_bit(tmp_path, dtype):
    save_encoder(tmp_path, bert_config())
    runner = runner_of(tmp_path, dtype=dtype)
    texts = [text(length, seed) for seed, length in enumerate((3, 40, 1, 17, 100, 64, 5, 23))]
    alone = [runner.encode(requests([ids]))[0].tobytes() for ids in texts]
    assert [vector.tobytes() for vector in runner.encode(requests(texts))] == alone
    assert [vector.tobytes() for vector in runner.encode(requests(texts[::-1]))] == alone[::-1]
    assert [vector.tobytes() for vector in runner.encode(requests(texts[2:5]))] == alone[2:5]


def test_types_that_a_model_does_not_have_are_ignored(tmp_path):
    """RoBERTa has one token type: whatever a tokenizer says, it is that one."""
    save_encoder(tmp_path, roberta_config(num_labels=1), classifier=True)
    runner = runner_of(tmp_path)
    typed = runner.encode(requests([text(3)], [[0, 1, 1]]))
    assert typed.tobytes() == runner.encode(requests([text(3)])).tobytes()
