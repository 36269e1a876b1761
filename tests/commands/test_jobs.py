"""A job over 500 problems through `ray job submit`: it is killed twice, and so is the generator.

It takes some five minutes, Ray's own ports and port 8000: `make test-commands`.
"""

import json
import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.processes import CpuClock
from tests.commands.shell import URL, Shell, head, replicas, until

PROBLEMS = 500
SAMPLE = 50
"""Problems that are solved again, undisturbed."""
SEED = 3

pytestmark = pytest.mark.timeout(3000)


def test_a_job_is_killed_twice_and_its_generator_once(shell: Shell, tmp_path: Path) -> None:
    problems, results, summary = (tmp_path / name for name in ("problems.jsonl", "results.jsonl", "summary.json"))
    at = sorted(random.Random(SEED).sample(range(40, PROBLEMS - 100), 3))
    command = f"banyan batch {problems} {results} --strategy beam_search --n 16 --seed {SEED} --json {summary}"

    def done() -> int:
        return results.read_bytes().count(b"\n") if results.exists() else 0

    def start(job: str, count: int) -> psutil.Process:
        """The job's process, once ``lines`` lines are done."""
        shell(f"ray job submit --no-wait --submission-id {job} -- {command}")
        batch = until(lambda: process_of(shell, results), lambda: shell(f"ray job logs {job}"))
        until(lambda: done() >= count or not batch.is_running(), lambda: f"{done()} lines are done")
        assert batch.is_running(), shell(f"ray job logs {job}")
        return batch

    def end_of(job: str) -> str:
        return until(lambda: over(shell, job), lambda: shell(f"ray job status {job}"))

    with head(shell):
        shell("serve deploy serve_config.yaml")
        shell.wait_for("RUNNING")
        shell(f"banyan problems --n {PROBLEMS} --seed 5 --output {problems}")

        for job, count in (("first", at[0]), ("second", at[1])):
            start(job, count).kill()
            assert end_of(job) == "FAILED"
            print(f"killed -9 at {done()} lines")

        began, clock, before = time.monotonic(), CpuClock(shell.processes), done()
        batch = start("third", at[2])
        [generator] = [pid for pid, name in replicas(shell).items() if "Generator" in name]
        psutil.Process(generator).kill()
        print(f"the generator's only replica killed at {done()} lines")
        until(lambda: not batch.is_running(), lambda: f"{done()} lines are done")
        seconds, spent = time.monotonic() - began, clock.spent()
        output = shell("ray job logs third")
        assert end_of("third") == "SUCCEEDED", output
        assert "are done already" in output

        lines = read(results)
        assert sorted(line["line"] for line in lines) == list(range(1, PROBLEMS + 1))
        assert not results.with_suffix(".errors.jsonl").read_bytes()
        is_summed_up(json.loads(summary.read_text()), lines)
        share = spent["controller replica"] / sum(spent.values())
        rate = (PROBLEMS - before) / seconds
        print(
            f"{PROBLEMS} results, none twice, no errors. The last run, with the generator's start in it: {rate:.2f} a"
        )
        print(f"second, the controller {share:.1%} of the CPU time, elsewhere {clock.elsewhere():.0f} s: {spent}")

        undisturbed = {line["line"]: line for line in lines if line["line"] <= SAMPLE}
        few, again = tmp_path / "few.jsonl", tmp_path / "again.jsonl"
        few.write_text("".join(problems.read_text().splitlines(keepends=True)[:SAMPLE]))
        shell(f"banyan batch {few} {again} --url {URL} --strategy beam_search --n 16 --seed {SEED}")
        for line in read(again):
            disturbed = undisturbed[line["line"]]
            assert (line["answer"], line["text"], line["paths"]) == tuple(
                disturbed[name] for name in ("answer", "text", "paths")
            )


def is_summed_up(summary: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Checks that the summary agrees with the lines."""
    assert summary["complete"]
    assert summary["lines"] == {"all": PROBLEMS, "results": PROBLEMS, "errors": {}, "missing": 0}
    graded = summary["graded"]
    assert graded["right"] == sum(line["right"] for line in lines)
    assert graded["problems"] == PROBLEMS
    assert sum(level["problems"] for level in graded["levels"].values()) == PROBLEMS
    assert summary["tokens"]["generated"] == sum(line["cost"]["generated_tokens"] for line in lines)
    latencies = sorted(line["seconds"] for line in lines)
    assert latencies[0] <= summary["latency_s"]["p50"] <= latencies[-1]


def over(shell: Shell, job: str) -> str | None:
    """Ray's status of a job, if it has ended."""
    output = shell(f"ray job status {job}").upper()
    return next((status for status in ("SUCCEEDED", "FAILED", "STOPPED") if status in output), None)


def process_of(shell: Shell, results: Path) -> psutil.Process | None:
    """The job's own process, not the shell from which Ray starts it."""
    for process in shell.processes():
        try:
            program, *arguments = process.cmdline() or [""]
        except psutil.Error:
            continue
        if Path(program).name.startswith("python") and str(results) in arguments:
            return process
    return None


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
