"""The benchmark of starts: names of processes, rows, timeline, and what an operator deploys."""

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from rich.console import Console

from benchmarks.pace.checkouts import Checkout
from benchmarks.processes import watched_by
from benchmarks.start.application import DASHBOARD, START_S, Progress, Start, started_application
from benchmarks.start.checkouts import SetUp, SetUpError, set_up
from benchmarks.start.conditions import CONDITIONS, QUIET, Condition, environment
from benchmarks.start.process_names import process_name
from benchmarks.start.processes import ProcessRow, Sampled, process_rows
from benchmarks.start.report import FIRST, SECOND, Figures, MeasuredStart
from benchmarks.start.scaling import ScaledUp, scale_up, two_generators
from benchmarks.start.timeline import bar, timeline

PYTHON = "/tmp/start-x/ours/.venv/bin/python"
WORKER = f"{PYTHON} /tmp/start-x/ours/.venv/lib/python3.11/site-packages/ray/_private/workers/default_worker.py --node"
SPAWN = f"{PYTHON} -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=75, pipe_handle=77)"
GENERATOR = "ray::ServeReplica:banyan:Generator"


@pytest.mark.parametrize(
    ("titles", "name"),
    [
        ([f"{PYTHON} /tmp/start-x/ours/.venv/bin/banyan serve --config serve_config.yaml --port 1"], "command"),
        ([WORKER, "ray::IDLE", GENERATOR], "replica Generator"),
        ([WORKER, "ray::IDLE", "ray::ServeReplica:banyan:SearchController", "ray::IDLE"], "SearchController"),
        ([WORKER, "ray::ServeController"], "ServeController"),
        ([WORKER, "ray::ProxyActor"], "proxy"),
        ([WORKER, "ray::IDLE"], "other Ray workers"),
        ([GENERATOR, f"{PYTHON} -m vllm.model_executor.models.registry"], "model inspection"),
        ([f"{PYTHON} -m kvstore.server.guard"], "LMCache guard"),
        ([f"{PYTHON} -m lmcache.v1.multiprocess.http_server --port 1"], "LMCache server"),
        ([f"{PYTHON} -m deployments.engines.template"], "engine template"),
        ([f"{PYTHON} -P /tmp/start-x/ours/search/run/solver_worker.py"], "solver worker"),
        (["VLLM::EngineCore", "g++ /home/x.cpp -o x.so"], "compiler"),
        (["/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -quiet -I /x"], "compiler"),
        (["/x/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=/x"], "GCS"),
        (['ray-dashboard-NodeHead-0 (/x/python -c "from multiprocessing.forkserver import main")'], "dashboard Node"),
        (["/usr/bin/python3 /x/a_script.py --option"], "python3 a_script.py"),
        ([], "unknown"),
    ],
)
def test_a_process_is_named_by_its_most_telling_title(titles: list[str], name: str) -> None:
    assert process_name(titles) == name


def test_an_engine_is_named_after_its_replica_where_that_is_known() -> None:
    assert process_name([SPAWN, "VLLM::EngineCore"], ["replica Generator", "raylet"]) == "engine of Generator"
    assert process_name([SPAWN], ["replica ProcessRewardModel"]) == "engine of ProcessRewardModel"
    template = f"{PYTHON} -m deployments.engines.template"
    assert process_name([template, "VLLM::EngineCore"], ["engine template"]) == "engine"
    assert process_name([template], ["engine template"]) == "fork of the engine template"
    assert process_name([SPAWN], ["command"]) == "spawned process"


def test_a_pidfd_shows_who_watches_a_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert process.pid not in watched_by(os.getpid())
            descriptor = os.pidfd_open(process.pid)
            assert process.pid in watched_by(os.getpid())
            os.close(descriptor)
        finally:
            process.kill()
    assert watched_by(process.pid) == set()


def sampled(*processes: Sampled) -> dict[int, Sampled]:
    return {each.pid: each for each in processes}


def test_rows_name_engines_leave_out_small_processes_and_sum_compilers() -> None:
    processes = sampled(
        Sampled(1, 0.0, None, [f"{PYTHON} /x/banyan serve"], 50.0, 4.0),
        Sampled(2, 9.0, 1, [WORKER, GENERATOR], 50.0, 11.0, nice=15),
        Sampled(3, 20.0, 2, [SPAWN, "VLLM::EngineCore"], 50.0, 16.0, children_cpu_s=3.0, nice=15),
        Sampled(4, 30.0, 3, ["g++ x.cpp"], 30.25, 0.0, children_cpu_s=0.5, nice=15),
        Sampled(5, 30.0, 4, ["/usr/bin/cc1plus x.cpp"], 30.25, 0.5, nice=15),
        Sampled(6, 31.0, 3, ["g++ y.cpp"], 33.0, 0.1, nice=15),
        Sampled(7, 32.0, 2, ["resource_tracker"], 50.0, 0.1),
    )
    assert process_rows(processes, now=50.0) == [
        ProcessRow("command", 0.0, None, 4.0, 0),
        ProcessRow("replica Generator", 9.0, None, 11.0, 15),
        ProcessRow("engine of Generator", 20.0, None, 16.0, 15),
        # What the engine's children took, though samples saw only 0.6 s of it.
        ProcessRow("compiler", 30.0, 33.0, 3.0, 15, 3),
    ]


def test_rows_of_a_later_time_have_only_processes_that_began_since() -> None:
    processes = sampled(
        Sampled(1, 0.0, None, [GENERATOR], 50.0, 4.0), Sampled(2, 45.0, 1, [SPAWN, "VLLM::EngineCore"], 47.0, 2.0)
    )
    assert process_rows(processes, now=50.0, since=40.0) == [ProcessRow("engine of Generator", 5.0, 7.0, 2.0, 0)]


def test_bars_span_the_life_of_a_process() -> None:
    assert bar(0.0, None, 10.0, 10) == "█" * 10
    assert bar(5.0, 8.0, 10.0, 10) == "     ███"
    assert bar(5.0, 5.1, 10.0, 10) == "     █"
    assert bar(10.0, None, 10.0, 10) == " " * 9 + "█"


@pytest.mark.parametrize("width", [80, 160])
def test_a_timeline_fits_the_terminal(width: int) -> None:
    rows = [ProcessRow("command", 0.0, None, 4.0, 0), ProcessRow("compiler", 30.0, 33.0, 103.25, 15, 30)]
    console = Console(file=io.StringIO(), width=width)
    console.print(timeline("a start", rows, 60.0, width))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("compiler (30)")
    assert lines[-1].split()[-3:] == ["30.0", "103.2", "15"]
    assert lines[-2].count("█") > width / 3


def test_the_environment_has_the_conditions_variable_and_not_the_callers(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "environment").write_text("export RAY_SERVE_X=1\n")
    checkout = Checkout("ours", tmp_path, tmp_path / "python")
    inherited = {"PATH": "/bin", "RAY_SERVE_X": "0", "PYTHONPATH": "/x", "PYTHONDONTWRITEBYTECODE": "1"}
    assert environment(inherited, [checkout], Condition(writes_bytecode=True)) == {"PATH": "/bin"}
    assert environment(inherited, [checkout], QUIET) == {"PATH": "/bin", "PYTHONDONTWRITEBYTECODE": "1"}


def test_conditions_with_one_bytecode_setting_follow_each_other() -> None:
    assert [str(each) for each in CONDITIONS] == [
        "PYTHONDONTWRITEBYTECODE unset, quiet",
        "PYTHONDONTWRITEBYTECODE=1, quiet",
        "PYTHONDONTWRITEBYTECODE=1, busy",
    ]


def test_only_the_number_of_generators_is_deployed_anew() -> None:
    config: dict[str, Any] = {
        "http_options": {"host": "127.0.0.1"},
        "applications": [{"name": "banyan", "args": {"a": 1}}],
    }
    assert two_generators(config, 8123) == {
        "http_options": {"host": "127.0.0.1", "port": 8123},
        "applications": [
            {"name": "banyan", "args": {"a": 1}, "deployments": [{"name": "Generator", "num_replicas": 2}]}
        ],
    }
    assert "deployments" not in config["applications"][0]


def test_the_dashboard_is_the_one_that_the_command_names() -> None:
    found = DASHBOARD.search("x\ndashboard http://127.0.0.1:8265, which asks for the token in /home/a token\nlogs /x\n")
    assert found is not None
    assert (found["url"], found["token"]) == ("http://127.0.0.1:8265", "/home/a token")
    found = DASHBOARD.search("dashboard http://127.0.0.1:8265\n")
    assert found is not None
    assert (found["url"], found["token"]) == ("http://127.0.0.1:8265", None)


def figures(second: float | None) -> Figures:
    def start(condition: Condition, number: str, seconds: float | None) -> MeasuredStart:
        return MeasuredStart("ours", condition, number, Start(seconds, {}, []))

    return Figures(
        [SetUp("base", False, 50.0, 900), SetUp("ours", False, 52.0, 900)],
        [
            start(Condition(writes_bytecode=True), SECOND, 40.0),
            start(QUIET, FIRST, 80.0),
            start(QUIET, SECOND, second),
            start(Condition(writes_bytecode=False, busy=True), SECOND, 400.0),
        ],
        {"ours": ScaledUp(12.0, 13.0, [])},
    )


def test_claims_are_about_a_quiet_machine() -> None:
    claims = figures(42.0).claims()
    assert [each["value"] for each in claims] == [42.0, 80.0, 1.04, 13.0, 1.05]
    assert all(each["holds"] for each in claims)


def test_a_start_that_did_not_end_in_time_breaks_its_claims() -> None:
    measured = figures(None)
    assert measured.starts[2].json["seconds"] == f"> {START_S:g}"
    assert [each["value"] for each in measured.claims() if not each["holds"]] == ["> 600", "not measured"]


BANYAN = """#!{python}
import json, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

generators = [{{"generated_tokens": 5}}]
engine = subprocess.Popen([sys.executable, "-c", "# VLLM::EngineCore\\nwhile True: pass"])
detached = "while True: pass # kvstore.server.guard"
guard = subprocess.Popen(["setsid", "--fork", sys.executable, "-c", detached])

class Handler(BaseHTTPRequestHandler):
    def reply(self, body=None):
        length = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(length)) if length else None
        if self.command == "PUT":
            assert self.headers["Authorization"] == "Bearer secret"
            assert sent["applications"][0]["deployments"] == [{{"name": "Generator", "num_replicas": 2}}]
            generators.append({{"generated_tokens": 1}})
        if self.command == "POST":
            generators[-1]["generated_tokens"] += 1
        data = json.dumps({{"generator": generators}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = reply

    def log_message(self, *_):
        pass

port = int(sys.argv[-1])
print("starting Ray", flush=True)
server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
print("starting Generator, SearchController", flush=True)
time.sleep(0.7)
{crash}
print("starting Generator", flush=True)
print(f"Banyan serves x on http://127.0.0.1:{{port}} after 1 s.", flush=True)
print(f"dashboard http://127.0.0.1:{{port}}, which asks for the token in {token}", flush=True)
server.serve_forever()
"""
"""A command that starts two processes, one of them detached, and answers as an application and as Ray's dashboard."""


def checkout_with(root: Path, crash: str = "") -> Checkout:
    binaries = root / ".venv" / "bin"
    binaries.mkdir(parents=True)
    token = root / "token"
    token.write_text("secret\n")
    banyan = binaries / "banyan"
    banyan.write_text(BANYAN.format(python=sys.executable, token=token, crash=crash))
    banyan.chmod(0o755)
    arguments: dict[str, Any] = {"generator": {"served_name": "x"}, "prm": {}}
    config = {"applications": [{"name": "banyan", "args": arguments}]}
    (root / "serve_config.yaml").write_text(yaml.safe_dump(config))
    return Checkout("ours", root, binaries / "python")


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def processes_of(directory: Path) -> list[int]:
    """Processes whose temporary directory this is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("TMPDIR") == str(directory):
                found.append(process.pid)
    return found


def test_a_start_is_measured_by_part_and_process_and_a_replica_is_added(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.start.processes.MIN_CPU_S", 0.0)  # on a busy machine they get little
    with started_application(checkout_with(tmp_path), short / "1", os.environ) as application:
        start = application.wait_first_answer()
        while len(processes_of(short / "1")) != 3:  # setsid, too, ends once it has forked
            time.sleep(0.01)
        scaled = scale_up(application)
    assert processes_of(short / "1") == []
    assert start.failure is None
    assert start.seconds == pytest.approx(sum(start.parts.values()), abs=0.05)
    assert list(start.parts) == ["process", "starting Ray", "starting deployments", "first answer"]
    rows = [row for row in start.processes if row.name in ("engine", "LMCache guard")]
    assert {row.name for row in rows} == {"engine", "LMCache guard"}
    assert all(row.ended is None and 0 <= row.began < start.seconds for row in rows)
    assert scaled.failure is None
    assert scaled.listed_s is not None
    assert scaled.first_step_s is not None
    assert 0 <= scaled.listed_s <= scaled.first_step_s


def test_a_start_that_fails_is_recorded(tmp_path: Path, short: Path) -> None:
    with started_application(checkout_with(tmp_path, "sys.exit('no engine')"), short / "1", os.environ) as application:
        start = application.wait_first_answer()
    assert processes_of(short / "1") == []
    assert start.seconds is None
    assert start.failure is not None
    assert start.failure.endswith("no engine\n")


def test_a_start_that_takes_too_long_is_recorded(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_output = Progress.read_output

    def read_until_deployments(progress: Progress) -> None:
        """The time is over as soon as deployments start, however long it took until then."""
        read_output(progress)
        if progress.parts[-1][0] == "starting deployments":
            monkeypatch.setattr("benchmarks.start.application.START_S", 0.0)

    monkeypatch.setattr(Progress, "read_output", read_until_deployments)
    with started_application(checkout_with(tmp_path, "time.sleep(600)"), short / "1", os.environ) as application:
        start = application.wait_first_answer()
    assert (start.seconds, start.failure) == (None, None)
    assert list(start.parts)[-1] == "starting deployments"


def test_a_set_up_begins_with_what_is_committed(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    recipe = ("@mkdir .venv", "@echo $$PIP_CACHE_DIR >.venv/cache", "@test -z '$(FAILS)'")
    (root / "Makefile").write_text("setup:\n" + "".join(f"\t{line}\n" for line in recipe))
    for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    (root / ".venv").mkdir()
    directory = tmp_path / "1"
    done = set_up(Checkout("ours", root, root), True, os.environ, directory)
    assert (root / ".venv" / "cache").read_text() == f"{directory}/pip\n"
    assert (done.side, done.writes_bytecode) == ("ours", True)
    assert done.venv_mb <= 1
    assert not directory.exists()
    with pytest.raises(SetUpError, match="status 2"):
        set_up(Checkout("ours", root, root), True, {**os.environ, "FAILS": "1"}, directory)
    assert not directory.exists()
