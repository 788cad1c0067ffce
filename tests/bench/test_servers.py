import socket
import sys

import psutil
import pytest
import yaml

from bench import servers
from bench.replay import RequestFailed
from bench.servers import deployment, empty_application, our_server
from serve_app.config import AppConfig

SERVER = """
import http.server, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("\\nready  now", flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_timed_from_its_start_and_ends_with_all_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_EMPTY_APPLICATION", SERVER)
    with empty_application(tmp_path / "empty.log") as server:
        answered_s = server.wait_for_http()
        members = psutil.Process(server.process.pid).children(recursive=True)
        assert server.wait_for_text("\nready ") >= answered_s > 0
        assert len(members) == 1
    assert server.process.returncode == 0
    assert not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in members)
    with socket.socket() as probe:
        port = int(server.url.rpartition(":")[2])
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "_EMPTY_APPLICATION", "import sys; print('no such thing'); sys.exit(3)")
    log = tmp_path / "empty.log"
    with empty_application(log) as server, pytest.raises(RequestFailed, match="status 3:\nno such thing"):
        server.wait_for_http()


def test_our_server_is_the_default_deployment_with_other_arguments(tmp_path, monkeypatch):
    commands = []
    original = servers.subprocess.Popen

    def popen(command, **options):
        commands.append(command)
        return original([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(servers.subprocess, "Popen", popen)
    with our_server(tmp_path / "ours.log", {"model": "random:tiny", "dtype": "int8"}) as server:
        server.process.wait(10)
    [[_, *arguments]] = commands
    assert arguments == ["-m", "serve_app", str(tmp_path / "ours.yaml")]
    written = yaml.safe_load((tmp_path / "ours.yaml").read_text())
    default = yaml.safe_load((servers._ROOT / "deploy/app.yaml").read_text())
    default["http_options"]["port"] = int(server.url.rpartition(":")[2])
    args = default["applications"][0]["args"]
    args |= {"model": "random:tiny", "dtype": "int8"}
    assert written == default


def test_the_default_deployment_is_served_with_another_engine_and_port():
    document = deployment({"model": "m", "dtype": "int8", "kv_cache": {"capacity_tokens": 64}}, 1234)
    assert document["http_options"] == {"host": "127.0.0.1", "port": 1234}
    [application] = document["applications"]
    config = AppConfig.model_validate(application["args"])
    assert (config.model, config.dtype, config.kv_cache.capacity_tokens) == ("m", "int8", 64)
    assert config.kv_cache.prefix_caching and config.scheduler.policy == "chunked"
    assert {deployment["name"] for deployment in application["deployments"]} == {"Ingress", "LLMServer"}
