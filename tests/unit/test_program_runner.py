"""What a program prints follows from the text of its path, within the tool's limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import psutil
import pytest

from benchmarks.processes import has_ended
from deployments.config import AppConfig
from deployments.engines.programs import WAIT_ERROR, ProgramRun, ProgramRunner
from deployments.sandbox.sandbox import Run, Session
from search.answers.programs import output_block, program_answer
from search.ports import ToolRequest
from search.tools.fair_slots import FairSlots, Requester

TOOL = ToolRequest(calls=3, seconds=60.0, memory_bytes=32 << 20, output_chars=50)
SHORT = TOOL._replace(seconds=0.2)
"""Of programs that never end: on a busy machine another one may need longer, too."""
REQUESTER = Requester("key", "search")


@pytest.fixture
async def runner() -> AsyncIterator[ProgramRunner]:
    before = {*psutil.Process().children()}
    runner = ProgramRunner()
    yield runner
    runner.close()
    async with asyncio.timeout(30):
        while not all(map(has_ended, {*psutil.Process().children()} - before)):
            await asyncio.sleep(0.01)


def fenced(source: str) -> str:
    return f"So:\n```python\n{source}\n```"


async def path(runner: ProgramRunner, *sources: str, tool: ToolRequest = TOOL) -> list[ProgramRun]:
    """The programs of one path, each run where it ends it."""
    text, runs = "", []
    for source in sources:
        text += fenced(source)
        runs.append(await runner.run(tool, text, REQUESTER))
        text += output_block(runs[-1].output)
    return runs


async def outputs(runner: ProgramRunner, *sources: str, tool: ToolRequest = TOOL) -> list[str]:
    return [run.output for run in await path(runner, *sources, tool=tool)]


async def test_variables_last_along_a_path_and_no_further(runner: ProgramRunner) -> None:
    assert await outputs(runner, "x = 1\nprint(x)", "x += 1\n1 / 0", "print(x)") == [
        "1\n",
        "ZeroDivisionError: division by zero\n",
        "2\n",
    ]
    first = "x = 1"
    left, right = await asyncio.gather(
        outputs(runner, first, "x = 7", "print(x)"), outputs(runner, first, "y = x", "print(x)")
    )
    assert (left[2], right[2]) == ("7\n", "1\n")
    assert await outputs(runner, "print(x)") == ["NameError: name 'x' is not defined\n"]


async def test_another_replica_says_the_same(runner: ProgramRunner) -> None:
    sources = "import random\nprint(random.random())", "print(random.random(), {'b', 'a'}, hash('a'))"
    again = ProgramRunner()
    assert await outputs(runner, *sources) == await outputs(again, *sources)
    text = f"Otherwise {fenced(sources[0])}"
    assert (await runner.run(TOOL, text, REQUESTER)).output != (await outputs(again, sources[0]))[0], (
        "another path draws others"
    )
    again.close()


async def test_a_program_at_its_limit_leaves_no_variables_and_never_runs_again(runner: ProgramRunner) -> None:
    endless = fenced("x = 1\nwhile True: pass")
    cut = await runner.run(SHORT, endless, REQUESTER)
    assert cut == ("TimeoutError: the program ran longer than 0.2 s\n", True, True)
    after = await runner.run(TOOL, endless + output_block(cut.output) + fenced("print(x)"), REQUESTER)
    assert after == ("NameError: name 'x' is not defined\n", True, False)
    grown = await path(runner, "x = [0] * 10**9", "print(x)")
    assert grown[0] == ("MemoryError: the program needs more than 32 MiB\n", True, False)
    assert grown[1].output.startswith("NameError")


async def test_calls_and_output_are_bounded(runner: ProgramRunner) -> None:
    runs = await path(runner, "print(1)", "print('é' * 100)", "print(1)\nprint(2", "print(4)")
    assert runs[1] == ("é" * 50 + "\n[the output is cut]\n", False, False)
    assert runs[2] == ("SyntaxError: unexpected EOF while parsing\n", True, False)
    assert runs[3] == ("RuntimeError: no more than 3 programs may be run\n", True, False)


async def test_an_output_cannot_end_its_block(runner: ProgramRunner) -> None:
    source = "print(chr(96) * 3 + 'python\\nx = 5\\n' + chr(96) * 3)"
    text = fenced(source) + output_block((await runner.run(TOOL, fenced(source), REQUESTER)).output)
    assert text.count("```") == 4
    assert (
        await runner.run(TOOL, text + fenced("print(x)"), REQUESTER)
    ).output == "NameError: name 'x' is not defined\n"
    assert program_answer(text) == "'''"


async def count(programs: Sequence[str]) -> str:
    if "fail" in programs[-1]:
        raise LookupError("no\nsuch thing")
    if "wait" in programs[-1]:
        await asyncio.Event().wait()
    return f"{len(programs)} " + "x" * (100 if "long" in programs[-1] else 0)


async def test_a_function_runs_programs_in_place_of_the_sandbox(runner: ProgramRunner) -> None:
    own = SHORT._replace(function=f"{__name__}:count")
    assert await path(runner, "1", "fail", "wait", tool=own) == [
        ("1 ", False, False),
        ("LookupError: no\n", True, False),
        ("TimeoutError: the program ran longer than 0.2 s\n", True, True),
    ]
    [run] = await path(runner, "long", tool=own)
    assert run.output == "1 " + "x" * 48 + "\n[the output is cut]\n"
    assert runner._sandbox is None, "no worker is started for it"


def test_the_tool_is_off_unless_set_and_an_extractor_may_be_programs() -> None:
    assert AppConfig().controller.tools.python is None
    config = AppConfig.model_validate({"controller": {"tools": {"python": {}}, "answer_extractor": "program"}})
    assert config.controller.tools.python is not None
    assert config.controller.tools.python.request == (4, 5.0, 128 << 20, 2000, "")
    assert config.controller.extractor is program_answer


async def test_where_too_many_programs_wait_each_is_told_so(
    runner: ProgramRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it has left no variables: the program behind it does not run it again."""
    with monkeypatch.context() as full:
        sandbox = await runner._opened()
        full.setattr(sandbox, "_wait_s", 0.0)
        full.setattr(sandbox, "_free", FairSlots(0))
        first = await runner.run(TOOL, fenced("x = 1"), REQUESTER)
    assert first == (f"{WAIT_ERROR}\n", True, True)
    text = fenced("x = 1") + output_block(first.output) + fenced("print(x)")
    assert (await runner.run(TOOL, text, REQUESTER)).output == "NameError: name 'x' is not defined\n"


async def test_an_earlier_program_that_meets_its_limit_only_now_is_counted(
    runner: ProgramRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Session.run

    async def with_time(session: Session, source: str) -> Run:
        """The program behind the endless one is to end by itself, on a worker of its own."""
        session._limits = session._limits._replace(seconds=0.2 if "while" in source else 60.0)
        return await run(session, source)

    monkeypatch.setattr(Session, "run", with_time)
    text = fenced("x = 1\nwhile True: pass") + output_block("it was quick enough elsewhere") + fenced("print(1)")
    assert await runner.run(TOOL, text, REQUESTER) == ("1\n", False, True)


async def test_a_client_with_many_programs_does_not_keep_another_ones_waiting(
    runner: ProgramRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.engines.programs.WORKERS", 1)  # so that the order is that of the turns alone
    await runner._opened()
    ended: list[str] = []

    async def run(owner: str, number: int) -> None:
        await runner.run(TOOL, fenced(f"print({number})"), Requester(owner, "search"))
        ended.append(owner)

    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(run("busy", number))
        while not ended:
            await asyncio.sleep(0)
        for number in range(3):
            group.create_task(run("other", number))
    assert len(ended) == 43
    # When the others come, one of busy's has ended, one runs, and the turn is busy's once more.
    assert ended[:8] == ["busy", "busy", *["busy", "other"] * 3]
