"""The benchmark on a GPU, without one: deadlines, what it does without after a failure, and its claims."""

import asyncio
import io
import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.model_pairs import EMBEDDED
from benchmarks.on_gpu.__main__ import Ended, claims, over_lock_step, rows_of, run
from benchmarks.on_gpu.parts import FINISHED, PARTS, Measurement
from benchmarks.on_gpu.setups import FALLBACKS, Fallback, Mode, Setup, next_fallback, without
from benchmarks.on_gpu.sides import Found, Task
from search.settings import parse_search

GRAPHS = Setup(Mode.GRAPHS, "bfloat16")
FLASH, GRAPH, RUNNER = FALLBACKS
TRACEBACK = 'Using FLASH_ATTN, graph\nTraceback (most recent call last):\n  File "{}"\nRuntimeError: no kernel image'


def run_code(code: str, limit_s: float, directory: Path) -> tuple[Ended, list[dict[str, Any]]]:
    rows = directory / "rows"
    ended = run([sys.executable, "-c", code], {"ROW": "7"}, limit_s, rows, directory / "log", lambda: False)
    return ended, rows_of(rows)


def test_a_part_has_its_environment_and_its_rows_are_kept(tmp_path: Path) -> None:
    code = "import os, sys; print('{\"row\": %s}' % os.environ['ROW']); print('text'); print('log', file=sys.stderr)"
    ended, rows = run_code(code, 60, tmp_path)
    assert ended.status == "done"
    assert rows == [{"row": 7}, {"text": "text"}]
    assert (tmp_path / "log").read_text() == "log\n"


def test_a_part_that_fails_says_so_and_one_is_ended_at_its_limit(tmp_path: Path) -> None:
    assert run_code("raise SystemExit(3)", 60, tmp_path)[0].status == "failed"
    assert run_code("import time; time.sleep(600)", 0, tmp_path)[0].status == "out of time"


def test_a_part_is_done_with_its_last_row(tmp_path: Path) -> None:
    code = "import time; print('{\"finished\": true}', flush=True); time.sleep(600)"
    rows = tmp_path / "rows"
    ended = run([sys.executable, "-c", code], {}, 60, rows, tmp_path / "log", lambda: FINISHED in rows_of(rows))
    assert ended.status == "done"


def test_the_end_of_a_part_is_that_of_the_processes_that_it_started(tmp_path: Path) -> None:
    """A process that the part starts has the FIFO open as long as it lives. It is ended by Ctrl-C, as by a limit."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    child = f"import time; held = open({str(fifo)!r}, 'w'); print(7, flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", code], {}, 60, tmp_path / "rows", tmp_path / "log", interrupt)
    poller = select.poll()
    poller.register(reading, 0)
    assert poller.poll(60_000) == [(reading, select.POLLHUP)]
    os.close(reading)


@pytest.mark.parametrize(
    ("setup", "names", "found"),
    [
        (GRAPHS, "vllm/vllm_flash_attn/flash_attn_interface.py", FLASH),
        (GRAPHS, "vllm/v1/worker/gpu/cudagraph_utils.py", GRAPH),
        (GRAPHS, "vllm/v1/worker/gpu/model_runner.py", RUNNER),
        (GRAPHS, "somewhere.py", FLASH),
        (GRAPHS._replace(attention="TRITON_ATTN"), "vllm/vllm_flash_attn/flash_attn_interface.py", GRAPH),
        (GRAPHS._replace(mode=Mode.COMPILED), "vllm/v1/worker/gpu/model_runner.py", None),
        (Setup(Mode.EAGER, "float32"), "vllm/vllm_flash_attn/flash_attn_interface.py", RUNNER),
        (Setup(Mode.EAGER, "float32", older_runner=True), "somewhere.py", None),
    ],
)
def test_it_does_without_what_the_traceback_names(setup: Setup, names: str, found: Fallback | None) -> None:
    assert next_fallback(setup, TRACEBACK.format(names)) is found


def test_there_is_an_end_to_what_it_does_without() -> None:
    setup = GRAPHS
    for _ in FALLBACKS:
        fallback = next_fallback(setup, "")
        assert fallback is not None
        setup = fallback.of(setup)
    assert setup == Setup(Mode.EAGER, "bfloat16", attention="TRITON_ATTN", older_runner=True)
    assert next_fallback(setup, "") is None


def test_later_parts_do_without_what_has_failed() -> None:
    later = without(GRAPHS._replace(mode=Mode.COMPILED), [GRAPH, FLASH])
    assert later == Setup(Mode.COMPILED, "bfloat16", attention="TRITON_ATTN")
    assert without(Setup(Mode.EAGER, "float32"), [GRAPH, FLASH]) == Setup(Mode.EAGER, "float32")


@pytest.mark.parametrize("name", PARTS)
def test_both_sides_of_a_part_run_alike(name: str) -> None:
    setup = PARTS[name].setup
    assert Setup.parse(json.dumps(setup)) == setup
    config = setup.app_config(EMBEDDED)
    theirs = setup.lock_step_arguments()
    for role, ours in (("generator", config.generator), ("prm", config.prm)):
        assert (ours.dtype, ours.max_num_seqs) == (theirs[role]["dtype"], theirs[role]["max_num_seqs"])
        shared = dict(ours.engine_args)
        del shared["max_num_batched_tokens"]
        assert shared.items() <= theirs[role].items()
        assert ours.kv_cache_memory_bytes == theirs[role]["kv_cache_memory_bytes"]


def rows(banyan: Sequence[float], lock_step: Sequence[float], in_flight: int = 16) -> list[dict[str, Any]]:
    return [
        {"side": side, "in_flight": in_flight, "round": number, "problems_per_s": rate}
        for side, rates in (("banyan", banyan), ("lock_step", lock_step))
        for number, rate in enumerate(rates)
    ]


def test_claims_compare_the_rounds_of_both_sides() -> None:
    # A third round, of one side only, does not count.
    measured = rows([8.0, 16.0, 1.0], [2.0, 4.0]) + rows([4.0], [2.0], in_flight=1)
    measured.append({"side": "banyan", "in_flight": 16, "problems_per_s": 0.1, "ahead": "off"})
    assert over_lock_step(measured, 16) == pytest.approx(4.0)
    assert over_lock_step(measured, 64) is None
    part = {"setup": GRAPHS._asdict(), "rows": [*measured, {"compared": "x", "same": 1, "of": 2}, {"left_over": []}]}
    assert [(each["value"], each["holds"]) for each in claims({"heavy": part})] == [
        (4.0, True),
        (0.5, True),
        ([], True),
    ]
    slow = {"setup": GRAPHS._asdict(), "rows": rows([5.0], [2.0]) + rows([3.0], [2.0], in_flight=1)}
    assert [each["holds"] for each in claims({"heavy": slow, "serve": {"status": "left out"}})] == [False, False]


def test_on_a_cpu_results_have_to_be_equal_and_speed_is_not_claimed() -> None:
    part = {
        "setup": GRAPHS._replace(cpu=True)._asdict(),
        "rows": [*rows([1.0], [2.0]), {"compared": "x", "same": 1, "of": 2}],
    }
    assert [(each["value"], each["asked"], each["holds"]) for each in claims({"heavy": part})] == [(1, 2, False)]


class Scripted:
    """A side that finds the right answer of every second task."""

    name = "scripted"

    def __init__(self) -> None:
        self.turns: list[tuple[list[Task], int]] = []

    async def solve(self, tasks: Sequence[Task], in_flight: int) -> list[Found]:
        self.turns.append((list(tasks), in_flight))
        return [Found(task.problem.answer if index % 2 else None, 3, 40) for index, task in enumerate(tasks)]

    async def counters(self) -> Mapping[str, int]:
        return {"engine_steps": 5 * len(self.turns)}


def test_a_turn_reports_its_figures_and_has_problems_of_its_own() -> None:
    side, report = Scripted(), io.StringIO()
    measurement = Measurement(PARTS["first_bfloat16"], GRAPHS, Path("log"), report)

    async def turns() -> None:
        for in_flight in (16, 1):
            await measurement.turn(side, measurement.tasks(in_flight), in_flight, round=0)
        tasks = side.turns[1][0]
        await measurement.compare(side, side.solve(list(reversed(tasks)), 4), list(reversed(tasks)), "in another order")

    asyncio.run(turns())
    first, second, compared = map(json.loads, report.getvalue().splitlines())
    assert (first["side"], first["in_flight"], first["round"], first["problems"]) == ("scripted", 16, 0, 64)
    assert (first["right"], first["steps"], first["tokens"], first["engine_steps"]) == (32, 192, 2560, 5)
    assert second["problems"] == 8
    tasks = [task for turn, _ in side.turns[:2] for task in turn]
    assert len({task.seed for task in tasks}) == len({task.problem.unique_id for task in tasks}) == 72
    assert (compared["same"], compared["of"]) == (0, 8)


def test_the_searches_of_both_sides_have_the_same_settings() -> None:
    from benchmarks.on_gpu.sides import BEAMS, SEARCH

    settings = parse_search(SEARCH)
    assert (settings.strategy.temperature, settings.strategy.max_depth) == (BEAMS.temperature, BEAMS.iterations)
    assert settings.max_step_tokens == BEAMS.step_tokens
