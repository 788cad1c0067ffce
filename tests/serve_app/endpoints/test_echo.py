"""LO-08 over HTTP: a prompt comes back as it was sent, and its tokens are those of the model's original tokenizer."""

from pathlib import Path

import pytest

from engine.api import load_tokenizer
from tests.engine.text.originals import ORIGINALS, TEXTS
from tests.serve_app.fake_engine import FakeEngine, script
from tests.serve_app.harness import serving


@pytest.mark.parametrize("name", ["qwen2", "gemma"])
async def test_lo_08_an_echo_is_the_prompt_and_its_tokens_are_the_original_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    original = ORIGINALS[name](tmp_path / "m.gguf")
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    async with serving(FakeEngine(script("!"), max_model_len=20000), tmp_path / "m.gguf") as client:
        for text in TEXTS:
            expected = original(text).input_ids
            if not expected or expected[:2] == [original.bos_token_id] * 2:
                continue                           # nothing to compute, or a BOS that transformers doubles
            body = {"prompt": text, "max_tokens": 1, "echo": True, "logprobs": 0}
            answer = (await client.post("/v1/completions", json=body)).json()
            assert answer["usage"]["prompt_tokens"] == len(expected), text
            assert answer["choices"][0]["text"] == text + "!"
            told = [spelled(tokenizer.token_bytes(token_id)) for token_id in expected]
            assert answer["choices"][0]["logprobs"]["tokens"][:-1] == told, text


def spelled(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
