"""A job processes every line once, whatever interrupts it, and its memory does not grow with the file."""

import asyncio
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest
from endpoint_stand_in import Endpoint, listening, tree_of
from hypothesis import given as drawn
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner, Result

from cluster.cli.main import app
from cluster.client.client import Client
from cluster.client.errors import Disconnected, Refused, Unreachable
from cluster.evaluation.problem_files import BadLine, Record, parse_problem, read_problems
from cluster.jobs.formats import InputKind
from cluster.jobs.inputs import look_at
from cluster.jobs.outputs import Identity, OutputError, Outputs, paths, read_lines
from cluster.jobs.run import MAX_FAILURES, Job, JobStopped, Settings
from cluster.jobs.window import FIRST, Window
from tests.unit.cluster.batch_lines import WRONG, request

Json = dict[str, Any]
SEARCH = {"strategy": "beam_search", "n": 4}
START_S = 60.0


def banyan(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["batch", *map(str, arguments)], env={"BANYAN_API_KEY": "", "RAY_ADDRESS": ""})
    assert "Traceback" not in result.output
    return result


def problem(index: int) -> str:
    return json.dumps({"problem": f"q{index}", "answer": "2", "level": index % 3, "unique_id": f"p/{index}"}) + "\n"


class Replies:
    """A client whose endpoint replies at once, or fails as configured."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before
        self.asked: list[str] = []
        self.keeps = True

    async def post(self, _path: str, body: Json) -> Json:
        await asyncio.sleep(0)
        self.before()
        if self.keeps:
            self.asked.append(body["messages"][0]["content"])
        return {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}


def identity(path: Path, **changed: Any) -> Identity:
    found = look_at(path)
    fields = {"input_sha256": found.sha256, "input_kind": found.kind, "lines": found.lines, "model": "stand-in"}
    return Identity.model_validate({**fields, "search": SEARCH, "seed": 0, "trees": False, **changed})


def do(given: Path, out: Path, client: Any, on_line: Callable[[], None] = lambda: None, again: bool = False) -> None:
    found = look_at(given)
    with Outputs(out, identity(given), found.last, again) as outputs:
        settings = Settings("beam_search", SEARCH)
        asyncio.run(Job(found, outputs, settings, cast(Client, client), Window(16), on_line).run())
        assert outputs.done.count == found.lines


def lines_of(out: Path) -> list[int]:
    """Line numbers of the input that the output accounts for."""
    results, errors, _ = paths(out)
    return sorted(line["line"] for file in (results, errors) for line in read_lines(file))


class TestProblems:
    def test_results_errors_summary_and_table(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(problem(0) + "\n" + problem(1) + "no JSON\n" + problem(2) + problem(3))
        endpoint.answers = {"q1": "3"}
        endpoint.trees = {"q1": tree_of("3", "2", "3"), "q2": tree_of("2", "3", None, "2")}
        endpoint.broken_questions = {"q3"}
        told, table = tmp_path / "summary.json", tmp_path / "out.parquet"
        ended = banyan(given, out, "--url", endpoint.url, "--json", told, "--parquet", table, "--n", "4")
        assert ended.exit_code == 0, ended.output
        assert "5 lines: 3 results, 1 with an error (failed), 1 with an error (input)" in ended.output
        rows = {row["problem_id"]: row for row in read_lines(out)}
        assert [rows[f"p/{index}"]["right"] for index in range(3)] == [True, False, True]
        assert [path["right"] for path in rows["p/2"]["paths"]] == [True, False, False, True]
        assert rows["p/0"]["line"] == 1
        errors = {error["line"]: error for error in read_lines(tmp_path / "out.errors.jsonl")}
        assert errors[4]["reason"].startswith("not JSON")
        assert (errors[6]["kind"], errors[6]["problem_id"]) == ("failed", "p/3")
        summary = json.loads(told.read_text())
        assert summary["complete"]
        assert summary["lines"] == {"all": 5, "results": 3, "errors": {"input": 1, "failed": 1}, "missing": 0}
        graded = summary["graded"]
        assert (graded["right"], graded["problems"]) == (2, 4)
        assert {level: share["problems"] for level, share in graded["levels"].items()} == {"0": 2, "1": 1, "2": 1}
        # pass@1: 1, 1/3, 1/2 and the failed problem's 0; of all paths: all but the failed one have a right path.
        assert graded["votes"]["1"]["pass"] == pytest.approx((1 + 1 / 3 + 1 / 2) / 4)
        assert graded["votes"]["4"] == {"problems": 4, "pass": 0.75, "naive": pytest.approx(0.5, abs=0.25)} | {
            "weighted": 0.5,
            "majority": 0.5,
        }
        assert summary["tokens"] == {"prompt": 60, "generated": 90}
        assert (graded["cost"]["prm_calls"], graded["cost"]["cached_tokens"]) == (2, 12)
        assert parquet.read_table(table).column("problem_id").to_pylist() == [
            row["problem_id"] for row in read_lines(out)
        ]

    def test_a_finished_job_sends_nothing_again(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(map(problem, range(5))))
        first = banyan(given, out, "--url", endpoint.url)
        asked = len(endpoint.requests)
        written = out.read_bytes()
        again = banyan(given, out, "--url", endpoint.url)
        assert (first.exit_code, again.exit_code) == (0, 0)
        assert "5 of 5 lines are done already" in again.output
        assert len(endpoint.requests) == asked
        assert out.read_bytes() == written

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [(("--seed", "1"), "seed was 0 and is 1"), (("--n", "8"), "search was"), (("--trees",), "trees was False")],
    )
    def test_a_job_does_not_resume_with_other_settings(
        self, endpoint: Endpoint, tmp_path: Path, arguments: tuple[str, ...], said: str
    ) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(problem(0))
        assert banyan(given, out, "--url", endpoint.url).exit_code == 0
        written = out.read_bytes()
        refused = banyan(given, out, "--url", endpoint.url, *arguments)
        assert refused.exit_code == 2
        assert said in refused.output
        assert out.read_bytes() == written

    def test_a_job_does_not_resume_with_another_input(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(problem(0))
        assert banyan(given, out, "--url", endpoint.url).exit_code == 0
        given.write_text(problem(0) + problem(1))
        refused = banyan(given, out, "--url", endpoint.url)
        assert refused.exit_code == 2
        assert "input_sha256 was" in refused.output

    def test_an_output_file_of_no_job_is_not_overwritten(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(problem(0))
        out.write_text("precious\n")
        refused = banyan(given, out, "--url", endpoint.url)
        assert refused.exit_code == 2
        assert "exists but belongs to no job" in refused.output
        assert out.read_text() == "precious\n"

    def test_failed_lines_can_be_retried(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(map(problem, range(4))) + "{\n")
        endpoint.broken_questions = {"q1", "q2"}
        assert banyan(given, out, "--url", endpoint.url).exit_code == 0
        endpoint.broken_questions = set()
        assert "3 with an error" not in banyan(given, out, "--url", endpoint.url).output
        ended = banyan(given, out, "--url", endpoint.url, "--retry-failed")
        assert "5 lines: 4 results, 1 with an error (input)" in ended.output
        assert lines_of(out) == [1, 2, 3, 4, 5]

    def test_nothing_listens(self, nobody: str, tmp_path: Path) -> None:
        given = tmp_path / "in.jsonl"
        given.write_text(problem(0))
        ended = banyan(given, tmp_path / "out.jsonl", "--url", nobody)
        assert ended.exit_code == 1
        assert not (tmp_path / "out.jsonl").exists()

    def test_the_same_file_twice_is_refused(self, tmp_path: Path) -> None:
        given = tmp_path / "in.jsonl"
        given.write_text(problem(0))
        assert banyan(given, given).exit_code == 2
        assert banyan(given, tmp_path / "out.jsonl", "--json", tmp_path / "out.errors.jsonl").exit_code == 2


class TestInputs:
    def test_gsm8k(self) -> None:
        fields = {"question": "How many?", "answer": "3 * 14 = <<3*14=42>>42\n#### 42"}
        found = parse_problem(Record(1, fields))
        assert not isinstance(found, BadLine)
        assert (found.problem, found.answer) == ("How many?", "42")

    def test_parquet_rows_are_read_like_lines(self, tmp_path: Path) -> None:
        rows = [{"problem": f"q{i}", "answer": str(i), "level": i} for i in range(600)]
        rows[7]["answer"] = None
        path = tmp_path / "in.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), path)
        found = look_at(path)
        assert (found.kind, found.lines) == (InputKind.PROBLEMS, 600)
        items = list(found.items())
        assert [item.number for item in items] == list(range(1, 601))
        assert [item.number for item in items if isinstance(item.work, BadLine)] == [8]
        rows[7]["answer"] = "7"
        parquet.write_table(pa.Table.from_pylist(rows), path)
        assert [each.answer for each in read_problems(path).problems] == [str(i) for i in range(600)]

    @hypothesis_settings(deadline=None)
    @drawn(pieces=st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b" ", b"  7\n", b"\x00", b" " * 40]), min_size=1))
    def test_line_numbers_are_the_same_for_counting_and_reading(
        self, tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
    ) -> None:
        path = tmp_path_factory.mktemp("in") / "in.jsonl"
        path.write_bytes(b"".join([b"{}\n", *pieces]))
        with pytest.MonkeyPatch.context() as patch:  # a limit that some lines exceed
            patch.setattr("cluster.evaluation.problem_files.MAX_LINE_BYTES", 8)
            patch.setattr("cluster.jobs.inputs.MAX_LINE_BYTES", 8)
            found = look_at(path)
            items = list(found.items())
        assert (found.lines, found.last) == (len(items), items[-1].number)


class TestRequests:
    def test_replies_and_errors_have_openais_format(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        asked = [request(0), request(1), request(2, url="/v1/files")]
        given.write_text("".join(json.dumps(line) + "\n" for line in asked))
        endpoint.refusals = [(400, {})]
        ended = banyan(given, out, "--url", endpoint.url, "--parquet", tmp_path / "t.parquet")
        assert ended.exit_code == 0, ended.output
        [reply] = read_lines(out)
        errors = {error["line"]: error for error in read_lines(tmp_path / "out.errors.jsonl")}
        assert {reply["custom_id"], *(error.get("custom_id") for error in errors.values())} == {"c-0", "c-1", None}
        assert reply["response"]["status_code"] == 200
        assert reply["response"]["body"]["choices"][0]["message"]["content"].endswith("\\boxed{2}")
        assert errors.pop(3)["reason"].startswith("url must be one of")
        [refused] = errors.values()
        assert refused["response"]["status_code"] == 400
        assert refused["response"]["body"] == {
            "error": {"message": "not now", "type": "server_error", "param": None, "code": "some_code"}
        }
        assert (
            json.loads(parquet.read_table(tmp_path / "t.parquet").to_pylist()[0]["body"]) == reply["response"]["body"]
        )

    @pytest.mark.parametrize(
        ("arguments", "tier"), [((), "flex"), (("--service-tier", "default"), "default")], ids=["as shipped", "asked"]
    )
    def test_a_job_is_flex_unless_its_options_or_the_line_say_otherwise(
        self, endpoint: Endpoint, tmp_path: Path, arguments: tuple[str, ...], tier: str
    ) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        own = request(1)
        own["body"]["service_tier"] = "priority"
        given.write_text("".join(json.dumps(line) + "\n" for line in (request(0), own)))
        assert banyan(given, out, "--url", endpoint.url, *arguments).exit_code == 0
        given.write_text(problem(2))
        assert banyan(given, tmp_path / "other.jsonl", "--url", endpoint.url, *arguments).exit_code == 0
        asked = {body["messages"][0]["content"]: body["service_tier"] for body in endpoint.requests}
        assert asked == {"q0": tier, "q1": "priority", "q2": tier}
        assert banyan(given, out, "--url", endpoint.url, "--service-tier", "slow").exit_code == 2

    def test_five_thousand_lines_with_one_percent_invalid(self, tmp_path: Path) -> None:
        """Every invalid line is reported, and memory stays flat over the last 3,000 lines."""
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        count, wrong = 5_000, cycle(WRONG)
        reasons: dict[int, str] = {}
        with given.open("wb") as file:
            for number in range(1, count + 1):
                if number % 100:
                    file.write(json.dumps(request(number)).encode() + b"\n")
                else:
                    line, reasons[number] = next(wrong)
                    file.write(line + b"\n")
        done = 0
        memory: list[int] = []

        def on_line() -> None:
            nonlocal done
            done += 1
            if done == count - 3_500:
                tracemalloc.start()
            if done in (count - 3_000, count):
                memory.append(tracemalloc.get_traced_memory()[0])

        replies = Replies()
        replies.keeps = False
        try:
            do(given, out, replies, on_line)
        finally:
            tracemalloc.stop()
        # Keeping a hundred bytes per line would exceed this.
        assert memory[1] - memory[0] < 3_000 * 50
        errors = {error["line"]: error["reason"] for error in read_lines(tmp_path / "out.errors.jsonl")}
        assert errors.keys() == reasons.keys()
        assert all(reasons[number] in errors[number] for number in reasons)
        assert sum(1 for _ in read_lines(out)) == count - len(reasons)


class TestResuming:
    def test_killed_twice_in_the_middle(self, endpoint: Endpoint, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        count = 120
        given.write_text("".join(map(problem, range(count - 2))) + "wrong\n[]\n")
        command = [sys.executable, "-m", "cluster.cli.main", "batch", str(given), str(out), "--url"]

        def start(url: str) -> "subprocess.Popen[bytes]":
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            return subprocess.Popen([*command, url], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def written() -> int:
            return out.read_bytes().count(b"\n") if out.exists() else 0

        for answered in (random.randint(5, 30), random.randint(40, 80)):
            with listening() as short:  # of its own: what a killed process has sent takes no answer of the next one's
                short.answers_left = answered - written()
                running = start(short.url)
                deadline = time.monotonic() + START_S
                while written() < answered:
                    assert running.poll() is None, running.communicate()[0]
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                running.send_signal(signal.SIGKILL)
                running.communicate(timeout=START_S)
        with out.open("ab") as file:  # the state after a kill in the middle of a write
            file.write(b'{"line": 1, "pro')
        running = start(endpoint.url)
        told, _ = running.communicate(timeout=START_S)
        assert running.returncode == 0, told
        assert f"{count} lines: {count - 2} results, 2 with an error (input)".encode() in told
        assert lines_of(out) == list(range(1, count + 1))

    @hypothesis_settings(max_examples=30, deadline=None)
    @drawn(data=st.data())
    def test_a_job_resumes_from_files_cut_off_anywhere(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Any part of the earlier output may remain: the rest is done, and nothing twice."""
        directory = tmp_path_factory.mktemp("job")
        given, out = directory / "in.jsonl", directory / "out.jsonl"
        wrong = data.draw(st.lists(st.booleans(), min_size=1, max_size=20))
        lines = ["{" if each else json.dumps(request(index)) for index, each in enumerate(wrong)]
        lines.append(json.dumps(request(99)))
        given.write_text("\n".join(lines))
        if lines[0] == "{":
            lines[0] = json.dumps(request(98))
            given.write_text("\n".join(lines))
        do(given, out, Replies())
        for file in paths(out)[:2]:
            content = file.read_bytes()
            file.write_bytes(content[: round(len(content) * data.draw(st.floats(0, 1)))])
        left = set(lines_of(out))
        replies = Replies()
        do(given, out, replies)
        assert lines_of(out) == list(range(1, len(lines) + 1))
        usable = [number for number, line in enumerate(lines, start=1) if line != "{"]
        assert len(replies.asked) == len([number for number in usable if number not in left])

    def test_an_unreachable_service_stops_the_job_without_losing_a_line(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(json.dumps(request(index)) + "\n" for index in range(40)))
        asked = 0

        def dies() -> None:
            nonlocal asked
            asked += 1
            if asked > 10:
                raise Unreachable("nothing listens")

        with pytest.raises(JobStopped, match="nothing listens"):
            do(given, out, Replies(dies))
        assert len(lines_of(out)) == 10
        do(given, out, Replies())
        assert lines_of(out) == list(range(1, 41))

    def test_a_service_that_fails_every_request_stops_the_job(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        count = MAX_FAILURES + 100
        given.write_text("".join(json.dumps(request(index)) + "\n" for index in range(count)))

        def fails() -> None:
            raise Disconnected("broke")

        with pytest.raises(JobStopped, match="one after the other"):
            do(given, out, Replies(fails))
        do(given, out, Replies(), again=True)
        assert lines_of(out) == list(range(1, count + 1))
        assert sum(1 for _ in read_lines(out)) == count

    def test_exhausted_time_budgets_do_not_stop_the_job(self, tmp_path: Path) -> None:
        """They say nothing about the service, and may suffice on another day."""
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        count = MAX_FAILURES + 10
        given.write_text("".join(json.dumps(request(index)) + "\n" for index in range(count)))

        def too_late() -> None:
            raise Refused("no answer yet", 400, "invalid_request_error", "search.budget.seconds", "budget_exhausted")

        do(given, out, Replies(too_late))
        assert [error["kind"] for error in read_lines(paths(out)[1])] == ["failed"] * count
        do(given, out, Replies(), again=True)
        assert sum(1 for _ in read_lines(out)) == count

    def test_a_full_disk_stops_the_job_without_losing_a_line(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(json.dumps(request(index)) + "\n" for index in range(40)))
        written = 0

        def write(file: int, content: memoryview) -> int:
            nonlocal written
            written += 1
            if written == 12:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real_write(file, content[:7] if written == 11 else content)  # half a line, then the disk is full

        real_write = os.write
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cluster.jobs.outputs.os.write", write)
            with pytest.raises(OutputError, match="No space left"):
                do(given, out, Replies())
        assert len(lines_of(out)) == 10
        do(given, out, Replies())
        assert lines_of(out) == list(range(1, 41))

    @pytest.mark.parametrize("value", ["NaN", r'"\ud800"', "[" * 100 + "]" * 100])
    def test_a_request_that_cannot_be_sent_is_an_error_of_the_input(self, tmp_path: Path, value: str) -> None:
        """Asking for it again would not help."""
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        line = json.dumps(request(0))
        given.write_text(line.replace('"body": {', f'"body": {{"user": {value}, ') + "\n" + line)
        sent: list[httpx.Request] = []

        def answer(asked: httpx.Request) -> httpx.Response:
            sent.append(asked)
            return httpx.Response(200, json={"id": "chatcmpl-1", "choices": []})

        do(given, out, Client("http://127.0.0.1", transport=httpx.MockTransport(answer)))
        [error] = read_lines(paths(out)[1])
        assert (error["line"], error["kind"]) == (1, "input")
        assert len(sent) == 1
        assert json.loads(sent[0].content) == request(0)["body"] | {"service_tier": "flex"}
        assert sent[0].headers["content-type"] == "application/json"

    def test_a_reply_with_numbers_that_json_has_not_is_an_error(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(json.dumps(request(0)))

        class Strange(Replies):
            async def post(self, path: str, body: Json) -> Json:
                return await super().post(path, body) | {"score": float("inf")}

        do(given, out, Strange())
        [error] = read_lines(paths(out)[1])
        assert error["kind"] == "failed"
        assert "cannot be written as JSON" in error["reason"]

    def test_two_jobs_cannot_write_the_same_file(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(json.dumps(request(0)))
        with Outputs(out, identity(given), 1), pytest.raises(OutputError, match="another job is writing"):
            Outputs(out, identity(given), 1)

    def test_files_that_nobody_holds_are_not_locked(self, tmp_path: Path) -> None:
        """As when a caller is cancelled while a thread opens them."""
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(json.dumps(request(0)))
        Outputs(out, identity(given), 1)
        with Outputs(out, identity(given), 1) as outputs:
            assert outputs.done.count == 0

    def test_a_duplicated_output_line_is_found(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(json.dumps(request(0)))
        do(given, out, Replies())
        once = out.read_bytes()
        out.write_bytes(once * 2)
        with pytest.raises(OutputError, match="line 1 occurs twice"):
            Outputs(out, identity(given), 1)
        out.write_bytes(once)
        with Outputs(out, identity(given), 1) as outputs:  # the lock was released
            assert outputs.done.count == 1


class TestWindow:
    def test_finds_the_concurrency_that_the_service_grants(
        self, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A service with five places is kept busy; its refusals fail no line."""
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(map(problem, range(60))))
        endpoint.places, endpoint.takes_s = 5, 0.05

        async def sleep(seconds: float) -> None:
            while not endpoint.refused:  # so the places are all taken at one time, however slow the machine is
                await asyncio.sleep(0.001)
            await asyncio.sleep(seconds)

        monkeypatch.setattr("endpoint_stand_in.asyncio", SimpleNamespace(sleep=sleep))
        ended = banyan(given, out, "--url", endpoint.url)
        assert ended.exit_code == 0, ended.output
        assert lines_of(out) == list(range(1, 61))
        assert not list(read_lines(paths(out)[1]))
        assert endpoint.most_at_work == 5
        # Only the first burst, and now and then one more request, are refused.
        assert 0 < endpoint.refused < 60

    async def test_grows_without_refusals_and_shrinks_to_the_granted_number(self) -> None:
        window = Window(100)
        for _ in range(FIRST):
            await window.enter()
        for _ in range(FIRST):
            window.granted()
            window.leave()
        assert window.limit == 2 * FIRST
        for _ in range(20):
            await window.enter()
        for _ in range(13):
            window.refused(0.0)
            window.leave()
        assert window.limit == window.in_flight == 7
        for _ in range(6):
            window.granted()
        assert window.limit == 7
        for _ in range(2):
            window.granted()
        assert window.limit == 8

    async def test_no_request_is_sent_before_retry_after_is_over(self) -> None:
        now = 100.0
        window = Window(4, lambda: now)
        await window.enter()
        window.refused(3600.0)
        window.leave()
        waiting = asyncio.create_task(window.enter())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        now += 61.0  # a longer retry-after is not obeyed
        window.granted()
        async with asyncio.timeout(60):
            await waiting
        assert window.in_flight == 1

    async def test_refused_requests_are_retried_without_limit(self, tmp_path: Path) -> None:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text(json.dumps(request(0)))
        asked = 0

        def full() -> None:
            nonlocal asked
            asked += 1
            if asked < 500:
                raise Refused("full", 429, retry_after_s=0.0)

        await asyncio.to_thread(do, given, out, Replies(full))
        assert lines_of(out) == [1]
        assert asked == 500


def test_invalid_lines_have_their_line_numbers_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([json.dumps(request(0)).encode(), b"", *(line for line, _ in WRONG)]))
    found: Iterator[tuple[int, BadLine]] = (
        (item.number, item.work) for item in look_at(path).items() if isinstance(item.work, BadLine)
    )
    for (number, bad), expected, (_, reason) in zip(found, islice(range(3, 99), len(WRONG)), WRONG, strict=True):
        assert number == bad.number == expected
        assert reason in bad.reason
