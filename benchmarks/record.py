"""Writes benchmark results as JSON, with the machine and the commit that they were measured on."""

import itertools
import json
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, figures: dict[str, Any], path: Path | None = None) -> Path:
    """Writes a run's figures to ``results/NAME-COMMIT.json``, or to ``path``, and returns the path. A second run of the
    same commit goes to ``NAME-COMMIT-2.json``. A list of plain values takes one line."""
    changed = _git("status", "--porcelain", "--", ":(top)", ":(top,exclude)benchmarks/results")
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    result = {
        "benchmark": name,
        "commit": commit,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = path or _unused(RESULTS / f"{name}-{commit.rstrip('+')}.json")
    path.write_text(_json(result) + "\n")
    return path


def _unused(path: Path) -> Path:
    others = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def claim(name: str, value: Any, asked: Any, holds: bool) -> dict[str, Any]:
    """A claim as results keep it under ``claims``: the value, the bound that it is held to, and whether it holds."""
    return {"name": name, "value": value, "asked": asked, "holds": holds}


def show_claims(console: Console, claims: Iterable[dict[str, Any]]) -> None:
    """Prints one line per claim."""
    for each in claims:
        verdict = "holds" if each["holds"] else "FAILS"
        console.print(f"{verdict}  {each['name']}: {each['value']} (asked: {each['asked']})")


def _json(value: Any, indent: str = "") -> str:
    """Like ``json.dumps`` with an indent of 2, but a list of plain values takes one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        members = (f"{json.dumps(str(key))}: {_json(each, inner)}" for key, each in value.items())
        return "{\n" + ",\n".join(inner + member for member in members) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(each, dict | list | tuple) for each in value):
        return "[\n" + ",\n".join(inner + _json(each, inner) for each in value) + f"\n{indent}]"
    return json.dumps(value)


def machine() -> dict[str, Any]:
    """Processor, cores, memory, load, and the versions of the packages that affect speed."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    packages = ("torch", "ray", "lmcache", "transformers")
    return {
        "processor": model,
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_before": [round(load, 2) for load in psutil.getloadavg()],
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages if find_spec(package)},
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()
