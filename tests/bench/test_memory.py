import os
import subprocess
import sys

from bench.memory import MemorySampler, tree_pss_bytes


def test_descendants_count_with_their_parent():
    before = tree_pss_bytes(os.getpid())
    program = "data = bytearray(200_000_000); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with_child = tree_pss_bytes(os.getpid())
        child.communicate("\n")
    assert with_child - before > 100_000_000


def test_a_process_that_is_gone_has_no_memory():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert tree_pss_bytes(child.pid) == 0


async def test_without_a_process_there_is_no_peak():
    async with MemorySampler(None) as memory:
        pass
    assert memory.peak_bytes is None
