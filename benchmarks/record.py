"""What every benchmark keeps beside its figures: the machine and the commit they were measured on."""

import json
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, figures: dict[str, Any]) -> Path:
    """Keeps a run as ``results/NAME-COMMIT.json`` and returns where."""
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else "")
    result = {
        "benchmark": name,
        "commit": commit,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{commit.rstrip('+')}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    """Processor, memory and the versions that matter."""
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
        "versions": {package: version(package) for package in packages},
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()
