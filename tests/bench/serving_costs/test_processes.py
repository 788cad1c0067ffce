import socket
import sys

import psutil
import pytest
import yaml

from bench.replay import RequestFailed
from bench.serving_costs import processes
from bench.serving_costs.processes import empty_application, our_server

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
    monkeypatch.setattr(processes, "_EMPTY_APPLICATION", SERVER)
    with empty_application(tmp_path) as server:
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
    monkeypatch.setattr(processes, "_EMPTY_APPLICATION", "import sys; print('no such thing'); sys.exit(3)")
    with empty_application(tmp_path) as server, pytest.raises(RequestFailed, match="status 3:\nno such thing"):
        server.wait_for_http()


def test_our_server_is_the_default_deployment_with_other_arguments(tmp_path, monkeypatch):
    commands = []
    original = processes.subprocess.Popen

    def popen(command, **options):
        commands.append(command)
        return original([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    with our_server(tmp_path, {"model": "random:tiny", "dtype": "int8"}) as server:
        server.process.wait(10)
    [[_, *arguments]] = commands
    assert arguments == ["-m", "serve_app", str(tmp_path / "app.yaml")]
    written = yaml.safe_load((tmp_path / "app.yaml").read_text())
    default = yaml.safe_load((processes._ROOT / "deploy/app.yaml").read_text())
    default["http_options"]["port"] = int(server.url.rpartition(":")[2])
    args = default["applications"][0]["args"]
    args |= {"model": "random:tiny", "dtype": "int8"}
    assert written == default
