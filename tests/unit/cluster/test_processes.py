"""No process outlives its purpose, even if its parent has died or it ignores SIGTERM."""

import subprocess
import sys
import time

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from benchmarks.processes import has_ended
from cluster.launch import processes
from cluster.launch.processes import no_process_left

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_an_orphan_that_ignores_sigterm_is_killed_and_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    monkeypatch.setattr(processes, "FORCE_S", 0.5)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with no_process_left() as descendants:
            parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert parent.stdin is not None
            assert parent.stdout is not None
            orphan = psutil.Process(int(parent.stdout.readline()))
            descendants.look()
            parent.kill()
            parent.wait()
            parent.stdin.close()
            parent.stdout.close()
            assert orphan.is_running()
        deadline = time.monotonic() + 60
        while not has_ended(orphan) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert has_ended(orphan)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
