"""Every family of encoders against transformers, in float32: texts packed side by side, each as if alone."""

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ConfigError
from tests.engine.model.encoders import describe, load_encoder, packed
from tests.helpers_encoders import ENCODERS, bert_config, reference_hidden, save_encoder, text

LENGTHS = (5, 40, 1, 100, 17)


@pytest.fixture(scope="module", params=list(ENCODERS))
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return save_encoder(folder, ENCODERS[request.param]), load_encoder(folder)


def test_packed_texts_equal_transformers_one_by_one(family):
    reference, encoder = family
    texts = [text(length) for length in LENGTHS]
    hidden = encoder.forward(packed(texts)).split(LENGTHS)
    for token_ids, rows in zip(texts, hidden, strict=True):
        torch.testing.assert_close(rows, reference_hidden(reference, token_ids), atol=2e-5, rtol=2e-5)


def test_a_text_does_not_depend_on_its_neighbours_to_the_bit(family):
    _, encoder = family
    texts = [text(length) for length in LENGTHS]
    together = encoder.forward(packed(texts)).split(LENGTHS)
    for token_ids, rows in zip(texts, together, strict=True):
        assert torch.equal(encoder.forward(packed([token_ids])), rows)
    reversed_order = encoder.forward(packed(texts[::-1])).split(LENGTHS[::-1])
    assert all(torch.equal(a, b) for a, b in zip(reversed_order[::-1], together, strict=True))


def test_token_types_are_added(tmp_path):
    reference, encoder = save_encoder(tmp_path, bert_config()), load_encoder(tmp_path)
    pair, types = text(12), [0] * 5 + [1] * 7
    hidden = encoder.forward(packed([pair, text(3)], [types, [0] * 3]))[:12]
    torch.testing.assert_close(hidden, reference_hidden(reference, pair, types), atol=2e-5, rtol=2e-5)
    assert not torch.equal(hidden, encoder.forward(packed([pair])))


def test_float16_weights_stay_close(tmp_path):
    reference = save_encoder(tmp_path, bert_config())
    hidden = load_encoder(tmp_path, "float16").forward(packed([text(20)]))
    torch.testing.assert_close(hidden, reference_hidden(reference, text(20)), atol=0.05, rtol=0.01)


def test_dtype_is_float32_on_a_cpu_unless_asked_for(tmp_path):
    save_encoder(tmp_path, bert_config())
    assert describe(tmp_path).dtypes.weights == "float32"
    assert describe(tmp_path, dtype="float16").dtypes.weights == "float16"


@pytest.mark.parametrize("old", [True, False])
def test_other_spellings_of_tensor_names(tmp_path, caplog, old):
    """With the prefix of a model with a head, and with the names that BERT's norms had in TensorFlow."""
    reference = save_encoder(tmp_path, bert_config())
    path = tmp_path / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(path).items()}
    if old:
        tensors = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, path, metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        hidden = load_encoder(tmp_path).forward(packed([text(20)]))
    assert not caplog.records                              # the pooler, which nothing needs, is known
    torch.testing.assert_close(hidden, reference_hidden(reference, text(20)), atol=2e-5, rtol=2e-5)


def test_roberta_has_room_for_its_padding_rows(tmp_path):
    save_encoder(tmp_path, ENCODERS["roberta"])
    assert describe(tmp_path).max_model_len == 128
    assert load_encoder(tmp_path).forward(packed([text(128)])).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"num_labels": 3}, "3 labels"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "x.Tanh"}}, "x.Tanh"),
    ],
)
def test_classifiers_that_give_no_score_are_refused(tmp_path, changes, cause):
    save_encoder(tmp_path, bert_config(**changes), classifier=True)
    with pytest.raises(ConfigError, match=cause):
        describe(tmp_path)


def test_relative_positions_are_refused(tmp_path):
    save_encoder(tmp_path, bert_config(position_embedding_type="relative_key"))
    with pytest.raises(ConfigError, match="relative_key"):
        describe(tmp_path)
