import subprocess
import sys

import psutil

# A child in a session of its own, whose own child outlives it: as raylet's workers do.
ORPHANER = """
import subprocess, sys
command = [sys.executable, "-c", "import time; time.sleep(60)"]
orphan = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
print(orphan.pid, flush=True)
"""
LAUNCHER = f"""
import subprocess, sys
from serve_app.launcher.processes import adopt_orphans, end_descendants
adopt_orphans()
child = subprocess.run([sys.executable, "-c", {ORPHANER!r}], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(child.stdout.strip(), end_descendants(), flush=True)
"""


def test_orphans_in_other_sessions_end_with_the_launcher():
    result = subprocess.run([sys.executable, "-c", LAUNCHER], capture_output=True, text=True, check=True)
    orphan, survivors = result.stdout.split(maxsplit=1)
    assert survivors.strip() == "[]"
    assert not psutil.pid_exists(int(orphan))


FOLLOWER = """
import os, signal, sys, time
from serve_app.launcher.processes import follow_parent
follow_parent(int(sys.argv[1]), signal.SIGKILL)
print("following", flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {FOLLOWER!r}, str(os.getpid())], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
)
assert child.stdout.readline() == "following\\n"
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_follower_ends_when_its_parent_is_killed():
    result = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True)
    assert result.returncode == -9
    pid = int(result.stdout)
    try:
        follower = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    assert follower.status() == psutil.STATUS_ZOMBIE or psutil.wait_procs([follower], timeout=5)[0]


def test_a_follower_of_a_parent_already_gone_does_not_start():
    result = subprocess.run([sys.executable, "-c", FOLLOWER, "1"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")


ENDER = """
import psutil, subprocess, sys
from serve_app.launcher.processes import end_children
children = [subprocess.Popen([sys.executable, path]) for path in sys.argv[1:]]
end_children("idle.py")
print(psutil.pid_exists(children[0].pid), children[1].poll(), flush=True)
children[1].kill()
"""


def test_children_end_by_the_name_of_their_program(tmp_path):
    programs = [tmp_path / "idle.py", tmp_path / "not_idle.py"]
    for program in programs:
        program.write_text("import time; time.sleep(60)")
    result = subprocess.run([sys.executable, "-c", ENDER, *map(str, programs)], capture_output=True, text=True)
    assert result.stdout == "False None\n"
