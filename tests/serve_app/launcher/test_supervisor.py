import json
import shlex

from engine.api import PreflightReport
from serve_app.__main__ import memory_plan
from serve_app.deploy_file import IMPORT_PATH, parse_deploy_file
from serve_app.launcher.supervisor import ready_block

REPORT = PreflightReport(
    model_name="it's",
    device="cpu",
    dtype="float16",
    max_model_len=4096,
    weights_bytes=2**30,
    activation_bytes=2**29,
    kv_bytes=2**31,
    kv_capacity_tokens=8192,
)
DEPLOYMENT = parse_deploy_file(
    {"http_options": {"port": 9000}, "applications": [{"import_path": IMPORT_PATH, "args": {"model": "demo"}}]}
)


def test_ready_block_tells_what_runs_and_where():
    block = ready_block(DEPLOYMENT, REPORT, {"dashboard_url": "http://127.0.0.1:8265"})
    for fact in ("http://127.0.0.1:9000/v1\n", "it's\n", "cpu\n", "float16\n", "8192 tokens\n", "http://127.0.0.1:8265"):
        assert fact in block


def test_curl_line_survives_the_shell_whatever_the_model_is_called():
    block = ready_block(DEPLOYMENT, REPORT, {"dashboard_url": ""})
    line = next(line for line in block.splitlines() if "curl" in line)
    words = shlex.split(line.removeprefix("try"))
    assert words[0] == "curl"
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's"


def test_memory_plan_is_one_line_with_every_part():
    assert memory_plan(REPORT) == (
        "memory plan on cpu: weights 1.00 GiB + activations 0.50 GiB + KV cache 2.00 GiB (8192 tokens)"
    )
