"""Programs that models write are run with the sandbox as shipped: the interpreter's own worker processes."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from benchmarks.processes import children_named, has_ended
from deployments.sandbox import End, Limits, Sandbox, SandboxBusy

LIMITS = Limits(seconds=60, memory_bytes=32 * 2**20, output_chars=100)
SHORT = LIMITS._replace(seconds=0.3)
"""Of programs that may end by it: on a busy machine any other one may need longer, too."""
WITHIN_S = 200.0
"""Far above every limit of a program: what takes longer hangs."""


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with asyncio.timeout(WITHIN_S), Sandbox(workers=2) as sandbox:
        yield sandbox


def workers() -> list[psutil.Process]:
    """The worker processes of all sandboxes here that still run."""
    return children_named("monty")


async def _run(sandbox: Sandbox, source: str, limits: Limits = LIMITS) -> tuple[End, str, str | None]:
    [run] = await sandbox.run([source], limits)
    return run.ended, run.output, run.error


async def test_output_and_state(sandbox: Sandbox) -> None:
    async with sandbox.session(LIMITS) as session:
        assert (await session.run("import math\nx = math.gcd(12, 18)")).output == ""
        failed = await session.run("y = x + 1\nprint(y)\nz = y / 0\nprint(z)")
        assert (failed.output, failed.error, failed.ended) == ("7\n", "ZeroDivisionError: division by zero", End.ERROR)
        assert (await session.run("print(x, y)")).output == "6 7\n"
    assert await _run(sandbox, "print(x)") == (End.ERROR, "", "NameError: name 'x' is not defined")


@pytest.mark.parametrize(
    ("source", "ended", "error"),
    [
        ("while True: pass", End.TIME, "TimeoutError: the program ran longer than 0.3 s"),
        ("try:\n    while True: pass\nexcept: print(1)", End.TIME, "TimeoutError: the program ran longer than 0.3 s"),
        ("while True: print('x' * 1000)", End.TIME, "TimeoutError: the program ran longer than 0.3 s"),
        ("x = []\nwhile True: x.append('y' * 10**6)", End.MEMORY, "MemoryError: the program needs more than 32 MiB"),
        ("'-'.join(['a' * 10**6] * 10**6)", End.MEMORY, "MemoryError: the program needs more than 32 MiB"),
        ("def f(n): return f(n + 1)\nf(0)", End.ERROR, "RecursionError: maximum recursion depth exceeded"),
        ("import sympy", End.ERROR, "ModuleNotFoundError: No module named 'sympy'"),
        ("print('a'", End.ERROR, "SyntaxError: unexpected EOF while parsing"),
        ("raise TimeoutError('mine')", End.ERROR, "TimeoutError: mine"),
        ("raise ValueError('one\\ntwo')", End.ERROR, "ValueError: one"),
        ("assert 1 == 2", End.ERROR, "AssertionError"),
    ],
)
async def test_how_programs_end(sandbox: Sandbox, source: str, ended: End, error: str) -> None:
    got, output, line = await _run(sandbox, source, SHORT if ended is End.TIME else LIMITS)
    assert (got, line) == (ended, error)
    assert len(output) <= LIMITS.output_chars
    assert await _run(sandbox, "print(1)") == (End.OK, "1\n", None)


@pytest.mark.parametrize(
    "source",
    [
        "print(open('/etc/passwd').read())",
        "import os\nprint(os.environ)",
        "import os\nprint(os.getenv('PATH', 1 / 0))",
        "import os\nprint(os.listdir('/'))",
        "from pathlib import Path\nprint(Path('/proc/self/environ').read_text())",
        "import socket",
        "import subprocess",
        "import ctypes",
        "import urllib.request",
        "__import__('os').system('ls')",
        "print(().__class__.__base__.__subclasses__())",
        "print((lambda: 0).__globals__)",
        "print('{0.__class__.__init__.__globals__}'.format([]))",
        "print('{:>1000000000}'.format('x'))",
        "print('%1000000000d' % 1)",
        "print(f'{1:>{10**9}}')",
        "print(10 ** 10 ** 8)",
        "print(2 ** 10**6)",
        "int('9' * 10**6)",
        "1 << 10**12",
        "import math\nmath.factorial(10**7)",
        "import re\nre.compile('(' * 10**4)",
        "eval('(' * 10**4 + ')' * 10**4)",
        "import json\nx = []\nfor i in range(10**5): x = [x]\njson.dumps(x)",
        "sum(range(10**12))",
        "list(range(10**9))",
    ],
)
async def test_nothing_is_got_by_escapes(sandbox: Sandbox, source: str) -> None:
    ended, output, error = await _run(sandbox, source, SHORT)
    assert ended in (End.ERROR, End.TIME, End.MEMORY)
    assert output == ""
    assert error


async def test_regular_expressions_do_not_backtrack_without_end(sandbox: Sandbox) -> None:
    source = "import re\nprint(re.match('(a+)+$', 'a' * 5000 + 'b'), re.match(r'(a*)*\\1$', 'a' * 5000 + 'b'))"
    ended, output, _ = await _run(sandbox, source, SHORT)
    assert ended is not End.CRASH
    assert output in ("", "None None\n")


async def test_a_limit_takes_the_state(sandbox: Sandbox) -> None:
    async with sandbox.session(SHORT) as session:
        await session.run("x = 1")
        assert not (await session.run("while True: pass")).ended.keeps_state
        session._limits = LIMITS  # of its next worker
        assert (await session.run("print(x)")).error == "NameError: name 'x' is not defined"


async def test_long_output_is_cut(sandbox: Sandbox) -> None:
    run, after = await sandbox.run(["for i in range(1000): print(i)", "print(i)"], LIMITS)
    assert run.output == "".join(f"{i}\n" for i in range(1000))[: LIMITS.output_chars]
    assert (run.cut, run.ended) == (True, End.OK)
    assert (after.cut, after.output) == (False, "999\n")


async def test_the_seed_and_a_fixed_clock_decide_what_is_drawn(sandbox: Sandbox) -> None:
    source = (
        "import random, time, datetime\ntime.sleep(1000)\n"
        "print(random.random(), time.time(), datetime.datetime.now().year)\nprint({'b', 'a'}, hash('a'))"
    )
    runs = [await sandbox.run([source], LIMITS, seed) for seed in (1, 1, 2)]
    assert runs[0][0].output == runs[1][0].output != runs[2][0].output
    assert runs[0][0].output.startswith(f"{random.Random(1).random()} 1735689600.0 2025")


async def test_a_worker_that_is_killed_is_replaced() -> None:
    before = workers()
    async with (
        asyncio.timeout(WITHIN_S),
        Sandbox(workers=1) as sandbox,
        sandbox.session(LIMITS) as session,
    ):
        [worker] = {*workers()} - {*before}
        await session.run("x = 1")
        running = asyncio.create_task(session.run("while True: pass"))
        os.kill(worker.pid, signal.SIGKILL)
        assert (await running).ended is End.CRASH
        assert (await session.run("print(1)")).output == "1\n"


async def test_whoever_leaves_ends_the_program() -> None:
    before = workers()
    async with asyncio.timeout(WITHIN_S), Sandbox(workers=1, wait_s=0.05) as sandbox:
        [worker] = {*workers()} - {*before}
        started = worker.cpu_times().user
        running = asyncio.create_task(sandbox.run(["while True: pass"], Limits(seconds=1000)))
        # Until the program has the worker, and runs: nothing else takes this much.
        while sandbox._free._free or worker.cpu_times().user < started + 0.1:
            await asyncio.sleep(0.01)
        with pytest.raises(SandboxBusy):
            await sandbox.run(["print(1)"], LIMITS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while not has_ended(worker):
            await asyncio.sleep(0.01)
        [run] = await sandbox.run(["print(1)"], LIMITS)
        assert run.output == "1\n"
    assert {*workers()} <= {*before}


async def test_waiting_programs_can_be_cancelled() -> None:
    async with asyncio.timeout(WITHIN_S), Sandbox(workers=1) as sandbox:
        runs = [asyncio.create_task(sandbox.run([f"print({n})"], LIMITS)) for n in range(20)]
        await asyncio.sleep(0)
        for run in runs[::2]:
            run.cancel()
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert [result[0].output for result in results[1::2]] == [f"{n}\n" for n in range(1, 20, 2)]
        assert [run.output for run in await sandbox.run(["x = 2", "print(x)"], LIMITS)] == ["", "2\n"]


@pytest.mark.long
async def test_ten_thousand_programs_leave_nothing() -> None:
    before = workers()
    async with Sandbox(workers=2) as sandbox:

        async def programs(number: int) -> None:
            for n in range(number):
                source = ("print(1)", "1 / 0", "x = [0] * 10**9", "x = list(range(10**5))")[n % 4]
                await sandbox.run([source], LIMITS)

        await programs(100)
        files, threads = psutil.Process().num_fds(), psutil.Process().num_threads()
        memory = psutil.Process().memory_info().rss
        await asyncio.gather(programs(5000), programs(5000))
        assert psutil.Process().num_fds() <= files + 10
        assert psutil.Process().num_threads() <= threads + 4
        assert psutil.Process().memory_info().rss < memory + 50 * 2**20
        own = {*workers()} - {*before}
        assert len(own) <= 2
        assert all(worker.memory_info().rss < 200 * 2**20 for worker in own)
    assert {*workers()} <= {*before}


async def test_a_sandbox_that_cannot_start_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workers()
    monkeypatch.setattr("deployments.sandbox.sandbox.probe", lambda: "1 / 0")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        await Sandbox(workers=1).__aenter__()
    assert {*workers()} <= {*before}
