"""Programs that people point at such a server: LangChain and the `llm` command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.integration.conftest import Application

pytestmark = pytest.mark.integration

PEPPER = " Hot 🌶 done"


def chat(application: Application) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{application.url}/v1", api_key="none", model=application.name, temperature=0, max_retries=0
    )


def test_langchain_invokes_streams_and_batches(script: Application) -> None:
    model = chat(script)
    conversation = [SystemMessage("be brief"), HumanMessage("hi"), AIMessage("yes?"), HumanMessage("P")]
    whole = model.invoke(conversation)
    assert whole.content == PEPPER
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0
    assert "".join(str(chunk.content) for chunk in model.stream(conversation)) == PEPPER
    assert [answer.content for answer in model.batch(["P", "V"])] == [PEPPER, " UNO DUE TRE"]


def test_langchain_passes_sampling_and_log_probabilities_on(script: Application) -> None:
    answer = chat(script).bind(logprobs=True, top_logprobs=2, stop=["don"], max_tokens=20).invoke("P")
    assert answer.content == PEPPER.split("don")[0]
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer.response_metadata["logprobs"]["content"])


def test_langchain_completes(script: Application) -> None:
    model = OpenAI(
        base_url=f"{script.url}/v1", api_key="none", model="script", temperature=0, max_tokens=20, max_retries=0
    )
    assert model.invoke("x V") == " UNO DUE TRE"


@pytest.mark.parametrize("flags", [[], ["--no-stream"]], ids=["streamed", "whole"])
def test_the_llm_command_line(script: Application, tmp_path: Path, flags: list[str]) -> None:
    models = [{"model_id": "ours", "model_name": "script", "api_base": f"{script.url}/v1"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))         # JSON is YAML
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-m", "llm", "-m", "ours", "-o", "temperature", "0", "--no-log", *flags, "P"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.stdout.rstrip("\n") == PEPPER, result.stderr
