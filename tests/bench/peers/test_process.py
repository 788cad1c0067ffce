import sys

import pytest

from bench.peers.packages import PeerFailed
from bench.peers.process import PeerSystem
from bench.workloads import Single, build_workload

WORKLOAD = build_workload(Single(3, 4, 2), range(10), seed=0)

PEER = """
from bench.metrics import RequestRecord
from bench.peers.protocol import serve_workloads, take_stdout

out = take_stdout()
print("a library that chatters")

def run(workload, on_record):
    for request in reversed(workload.requests):
        on_record(RequestRecord(request.index, 4, request.output_len, 0.0, (1.0, 2.0), sum(request.prompt_token_ids)))

serve_workloads(out, {"threads": 2}, run)
"""


async def test_a_peer_runs_workload_after_workload_whatever_its_libraries_print():
    seen = []
    async with PeerSystem.start("fake", [sys.executable, "-c", PEER]) as peer:
        assert peer.description == {"threads": 2}
        for _ in range(2):
            records, _ = await peer.run(WORKLOAD, seen.append)
            assert [record.index for record in records] == [0, 1, 2]
            assert [record.end_s for record in records] == [sum(r.prompt_token_ids) for r in WORKLOAD.requests]
    assert len(seen) == 6


async def test_a_peer_that_cannot_start_is_an_error():
    with pytest.raises(PeerFailed, match="peer fake ended with status 3"):
        async with PeerSystem.start("fake", [sys.executable, "-c", "raise SystemExit(3)"]):
            pass
