import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from bench.peers.dequantize import plain


def test_weights_are_saved_though_their_model_was_read_from_a_gguf_file(tmp_path):
    config = Qwen2Config(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to(torch.float16)
    config.quantization_config = {"quant_method": "gguf"}
    plain(model).save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto")
    assert again.dtype == torch.float16
    assert not hasattr(again.config, "quantization_config")
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
