"""From an empty virtual environment to the first answer, in front of a model that is served already.

    python -m benchmarks.without_engines
    python -m benchmarks.without_engines --backend http://127.0.0.1:8001

Installs this checkout without engines in an environment of its own, by pip and without its cache, in the versions of
the lock: seconds, and megabytes on disk. Then `banyan serve --backend` is started in it, twice, and timed until the
first answer of `/v1/chat/completions`. Unless one is named, the backend is `vllm serve` with the embedded generator.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from benchmarks.backend import ROOT, vllm_serve
from benchmarks.record import claim, show_claims, write_result
from cluster.launch.application import free_port
from deployments.startup.environment import set_environment

ANSWER_S = 20.0
"""What is asked of the first start."""
TIMEOUT_S = 300.0
ENGINES = ("lmcache", "torch", "transformers", "vllm")
console = Console(stderr=True)


def install(directory: Path) -> dict[str, Any]:
    """Makes the environment; returns what it took."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python, lock = directory / "bin" / "python", ROOT / "requirements" / "cpu.lock"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "--constraint", str(lock), str(ROOT)], check=True)
    seconds = time.monotonic() - began
    files = [file for file in directory.rglob("*") if file.is_file() and not file.is_symlink()]
    [packages] = directory.glob("lib/python*/site-packages")
    return {
        "seconds": round(seconds, 1),
        "megabytes": round(sum(file.stat().st_size for file in files) / 1e6),
        "packages": len(list(packages.glob("*.dist-info"))),
        "engines": [name for name in ENGINES if (packages / name).exists()],
    }


@contextmanager
def serve(directory: Path, backend: str) -> Iterator[str]:
    """`banyan serve --backend` of that environment, in a directory without a checkout; yields its address at once."""
    port = free_port()
    command = [str(directory / "bin" / "banyan"), "serve", "--backend", backend, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def first_answer_s(directory: Path, backend: str) -> float:
    """Seconds from the command to the first answer.

    Raises:
        TimeoutError: there was none.
    """
    began = time.monotonic()
    question = {"role": "user", "content": "Start with 149. Multiply by 3. Add 229. What is the result?"}
    body = {"model": "", "messages": [question], "search": {"strategy": "self_consistency", "n": 8}}
    with serve(directory, backend) as url, httpx.Client(base_url=url, trust_env=False, timeout=30.0) as http:
        while time.monotonic() - began < TIMEOUT_S:
            with suppress(httpx.HTTPError):
                body["model"] = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
                http.post("/v1/chat/completions", json=body).raise_for_status()
                return time.monotonic() - began
            time.sleep(0.1)
    raise TimeoutError("no answer")


def main(
    backend: Annotated[str | None, typer.Option(help="URL of a server; unset: `vllm serve`.")] = None,
) -> None:
    set_environment()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "venv"
        installed = install(directory)
        console.print(installed)
        with vllm_serve() if backend is None else nullcontext(backend) as url:
            seconds = [round(first_answer_s(directory, url), 1) for _ in range(2)]
    claims = [
        claim("engines installed", installed["engines"], [], not installed["engines"]),
        claim("seconds to the first answer, first start", seconds[0], f"<= {ANSWER_S:g}", seconds[0] <= ANSWER_S),
    ]
    path = write_result("without_engines", {"installed": installed, "first_answer_s": seconds, "claims": claims})
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
