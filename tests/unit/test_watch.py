"""An engine counts as hung neither while it works, however long that takes, nor while it has nothing to do."""

import signal
import subprocess
import sys
from collections.abc import Iterable
from unittest.mock import Mock

import psutil
import pytest

from deployments.engines.watch import EngineProcesses, HangDetector, Signs

STALL, STEP = 5.0, 20.0


def looks(*, seconds: int, reports: int, progress: int, owes: bool, computes: bool) -> Iterable[str | None]:
    """Results of ``seconds`` looks, one per second; ``reports`` and ``progress`` are the gains between two looks."""
    detector = HangDetector(STALL, STEP)
    for second in range(1, seconds + 1):
        yield detector.look(Signs(second * reports, second * progress, owes), lambda: computes, 1.0)


def test_an_engine_at_work_never_hangs() -> None:
    assert not any(looks(seconds=100, reports=9, progress=5, owes=True, computes=False))


def test_an_idle_engine_never_hangs() -> None:
    assert not any(looks(seconds=100, reports=0, progress=0, owes=False, computes=False))


def test_an_engine_that_neither_sends_nor_computes_hangs_after_stall_s() -> None:
    results = list(looks(seconds=5, reports=0, progress=0, owes=True, computes=False))
    assert results[:4] == [None] * 4
    assert results[4] == "the engine hangs: it has work but has done nothing for 5 s"


@pytest.mark.parametrize("reports", [0, 1000], ids=["silent", "turning over"])
def test_an_engine_busy_without_progress_hangs_after_max_step_s(reports: int) -> None:
    results = list(looks(seconds=20, reports=reports, progress=0, owes=True, computes=True))
    assert results[:19] == [None] * 19
    assert results[19] == "the engine hangs: no progress on its requests for 20 s"


def test_a_sign_of_life_restarts_the_silence() -> None:
    detector = HangDetector(STALL, STEP)
    for second in range(100):
        assert detector.look(Signs(second // 4, second // 4, owes=True), lambda: False, 1.0) is None
        assert detector.silent_s <= 4.0


def test_computing_waiting_stopped_and_killed_processes_are_recognized() -> None:
    code = "import sys\nprint(flush=True)\nsys.stdin.readline()\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        busy = False
        processes = EngineProcesses([child.pid], lambda: busy)
        watched = psutil.Process(child.pid)
        before = processes.computes(0.0)  # since the process started
        assert child.stdout is not None
        child.stdout.readline()  # it has started
        while watched.status() != psutil.STATUS_SLEEPING:
            pass
        processes.computes(0.0)
        assert before
        assert not processes.computes(1.0)
        busy = True
        assert processes.computes(1.0)  # asleep until its GPU is done
        busy = False
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        used = cpu_s(watched)
        while cpu_s(watched) < used + 0.1:
            pass
        assert processes.computes(1.0)
        child.send_signal(signal.SIGSTOP)
        while watched.status() != psutil.STATUS_STOPPED:
            pass
        assert not processes.computes(0.0)
        busy = True  # with the kernels of another engine
        assert not processes.computes(0.0)
        busy = False
        processes.kill()
        assert child.wait(10) == -signal.SIGKILL
        assert not processes.computes(1.0)
    finally:
        child.kill()
        child.communicate()


def test_a_wait_for_the_gpu_is_no_hang_but_a_wait_for_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CPU time is used in either."""
    asleep = Mock(status=lambda: psutil.STATUS_SLEEPING, children=lambda recursive: [])
    asleep.cpu_times.return_value = Mock(user=3.0, system=1.0)
    monkeypatch.setattr(psutil, "Process", lambda pid: asleep)
    detector, busy_s = HangDetector(STALL, 2 * STEP), 30
    second = 0
    processes = EngineProcesses([1], lambda: second < busy_s)
    processes.computes(1.0)  # since the process started
    found = None
    while found is None:
        second += 1
        found = detector.look(Signs(0, 0, owes=True), lambda: processes.computes(1.0), 1.0)
    assert (second, found) == (34, "the engine hangs: it has work but has done nothing for 5 s")
    assert detector.silent_s == STALL


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
