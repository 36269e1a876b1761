"""Servers as published, started once each, that Banyan searches in front of."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from deployments.backends.scorer import ALL_TOKENS
from deployments.engines.settings import EMBEDDED_MODELS

START_S = 240.0
PUBLISHED = Path(".models/SmolLM2-135M-Instruct")


@contextmanager
def started(command: list[str], port: int, path: str, log: Path, **environment: str) -> Iterator[str]:
    """The URL of a server, once it answers at ``path``."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        # It ends with this process, however that ends: it would keep its port, and whatever lock it has inherited.
        server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
    try:
        deadline = time.monotonic() + START_S
        while not _answers(url + path):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def free_port() -> int:
    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        port: int = unbound.getsockname()[1]
    return port


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What ``vllm serve`` runs, with the embedded generator on a CPU."""
    more = ["--served-model-name", "arithmetic", "--max-num-seqs", "64", "--block-size", "32"]
    with _vllm(EMBEDDED_MODELS / "generator", tmp_path_factory.mktemp("vllm") / "log", *more) as url:
        yield url


@pytest.fixture(scope="session")
def published_vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with a published generator, where ``make test-backends`` has put one."""
    if not PUBLISHED.exists():
        pytest.skip(f"{PUBLISHED} is not there: make test-backends")
    with _vllm(PUBLISHED, tmp_path_factory.mktemp("vllm") / "log", "--served-model-name", "smollm2") as url:
        yield url


@pytest.fixture(scope="session")
def vllm_pooling_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with the embedded reward model, which vLLM itself knows as Qwen2.5-Math-PRM's architecture."""
    more = ["--runner", "pooling", "--pooler-config", ALL_TOKENS]
    with _vllm(EMBEDDED_MODELS / "prm", tmp_path_factory.mktemp("vllm") / "log", *more) as url:
        yield url


@contextmanager
def _vllm(model: Path, log: Path, *more: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"]
    command += ["--dtype", "float32", "--enforce-eager", *more]
    with started(command, port, "/health", log, VLLM_CPU_KVCACHE_SPACE="1", OMP_NUM_THREADS="1") as url:
        yield url


@pytest.fixture(scope="session")
def llama_cpp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server of llama-cpp-python with a published GGUF, where ``make test-backends`` has put both."""
    python, models = Path(".venv-backends/bin/python"), sorted(Path(".venv-backends").glob("*.gguf"))
    if not (python.exists() and models):
        pytest.skip("llama-cpp-python and a GGUF are not installed: make test-backends")
    port = free_port()
    command = [str(python), "-m", "llama_cpp.server", "--model", str(models[0]), "--model_alias", "smollm2"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", "2048"]
    with started(command, port, "/v1/models", tmp_path_factory.mktemp("llama") / "log") as url:
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
