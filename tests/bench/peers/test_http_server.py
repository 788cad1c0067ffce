import sys

import pytest

from bench import servers
from bench.peers.http_server import OurServer
from bench.peers.packages import PeerFailed


async def test_a_server_that_ends_before_it_is_ready_has_failed_with_the_cause(tmp_path, monkeypatch):
    program = "import sys; print('ConfigError: model: no such model'); sys.exit(1)"
    original = servers.subprocess.Popen
    monkeypatch.setattr(
        servers.subprocess, "Popen", lambda command, **options: original([sys.executable, "-c", program], **options)
    )
    with pytest.raises(PeerFailed, match=r"no such model \(the server ended with status 1\)"):
        async with OurServer.start("ours", {"model": "m"}, tmp_path / "ours.log", timeout_s=1):
            pass
