"""What a model's sentence-transformers files say, and what of it is refused."""

import json
import logging

import pytest

from engine.errors import ConfigError
from engine.model.sentence import DenseSpec, SentenceSpec, read_sentence_spec

TYPES = "sentence_transformers.models"


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def modules(*kinds):
    paths = {"Transformer": ""}
    return [
        {"idx": i, "name": str(i), "path": paths.get(kind, f"{i}_{kind}"), "type": f"{TYPES}.{kind}"}
        for i, kind in enumerate(kinds)
    ]


def spec_of(folder, *kinds, **files):
    write(folder, {"modules.json": modules(*kinds), **{name.replace("__", "/"): it for name, it in files.items()}})
    return read_sentence_spec(folder, 4)


def test_a_folder_without_such_files_takes_the_mean(tmp_path):
    assert read_sentence_spec(tmp_path, 4) == SentenceSpec(("mean",), (), False, None)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",)),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 4}, ("mean",)),
        ({"pooling_mode_max_tokens": True}, ("max",)),
        ({"pooling_mode_lasttoken": True}, ("last",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 4}, ("last",)),
        ({"pooling_mode": ["mean", "cls"]}, ("cls", "mean")),
    ],
)
def test_pooling(tmp_path, config, pooling):
    spec = spec_of(tmp_path, "Transformer", "Pooling", **{"1_Pooling__config.json": config})
    assert (spec.pooling, spec.normalize, spec.vector_size(4)) == (pooling, False, 4 * len(pooling))


def test_dense_layers_and_normalisation(tmp_path):
    dense = {"in_features": 4, "out_features": 3, "activation_function": "torch.nn.modules.activation.Tanh"}
    spec = spec_of(
        tmp_path, "Transformer", "Pooling", "Dense", "Normalize",
        **{"1_Pooling__config.json": {"pooling_mode_mean_tokens": True}, "2_Dense__config.json": dense},
    )  # fmt: skip
    assert spec.normalize
    assert spec.dense == (DenseSpec(tmp_path / "2_Dense", 4, 3, True, "tanh"),)
    assert spec.vector_size(4) == 3


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 200}, "tokenizer_config.json": {"model_max_length": 9}}, 200),
        ({"sentence_bert_config.json": {}, "tokenizer_config.json": {"model_max_length": 300}}, 300),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({"sentence_roberta_config.json": {"max_seq_length": 128}}, 128),
    ],
)
def test_the_longest_text(tmp_path, files, length):
    write(tmp_path, files)
    assert read_sentence_spec(tmp_path, 4).max_length == length


@pytest.mark.parametrize(
    ("kinds", "files", "cause"),
    [
        (("Transformer", "Pooling"), {"1_Pooling__config.json": {"pooling_mode_weightedmean_tokens": True}}, "weight"),
        (("Transformer", "Pooling"), {"1_Pooling__config.json": {}}, "of no kind"),
        (("Transformer", "Pooling"), {}, r"1_Pooling/config\.json cannot be read"),
        (("Transformer", "LSTM"), {}, "LSTM is not supported"),
        (("Transformer", "Normalize", "Dense"), {}, "Dense after Normalize"),
        (("Transformer",), {"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case"),
        (
            ("Transformer", "Dense"), {"1_Dense__config.json": {"in_features": 5, "out_features": 3}},
            "takes 5 numbers; the module before gives 4",
        ),
        (
            ("Transformer", "Dense"),
            {"1_Dense__config.json": {"in_features": 4, "out_features": 3, "activation_function": "torch.nn.SiLU"}},
            "SiLU",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, kinds, files, cause):
    with pytest.raises(ConfigError, match=cause):
        spec_of(tmp_path, *kinds, **files)


def test_a_prompt_that_clients_have_to_send_is_told(tmp_path, caplog):
    prompts = {"default_prompt_name": "query", "prompts": {"query": "query: "}}
    with caplog.at_level(logging.WARNING):
        spec_of(tmp_path, "Transformer", **{"config_sentence_transformers.json": prompts})
    assert "'query: '" in caplog.text
