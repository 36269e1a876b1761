"""A published checkpoint served through YAML alone: SmolLM2-135M-Instruct, which writes the delimiter in two tokens."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.launch.application import free_port
from search.tree import StepEnd
from tests.models.conftest import model_directory

ROOT = Path(__file__).resolve().parents[2]
START_S = 600.0
STOP_S = 120.0
QUESTION = "What is 7 times 8? Think step by step."
DELIMITER = "\n\n"


def edited_config() -> dict[str, Any]:
    """`serve_config.yaml` with another generator, and a function instead of a PRM."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    args = config["applications"][0]["args"]
    args["generator"] |= {
        "model": str(model_directory("SmolLM2-135M-Instruct")),
        "served_name": "smollm2",
        "max_model_len": 2048,
        "kv_cache_memory_bytes": 512 << 20,
    }
    args["prm"] = {"family": "function", "function": "tests.models.step_reward:reward"}
    return config


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of `banyan serve --config`, in a process of its own."""
    directory = tmp_path_factory.mktemp("smollm2")
    config, log, port = directory / "serve_config.yaml", directory / "log", free_port()
    config.write_text(yaml.safe_dump(edited_config()))
    banyan = Path(sys.executable).with_name("banyan")
    with log.open("wb") as output:
        command = [str(banyan), "serve", "--config", str(config), "--port", str(port)]
        served = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", served, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        served.send_signal(signal.SIGINT)
        served.wait(STOP_S)


def wait_until_healthy(url: str, served: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and served.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"`banyan serve` did not come up:\n{log.read_text()[-4000:]}")


@pytest.mark.timeout(1500)
def test_no_step_of_a_beam_search_continues_after_a_delimiter(url: str) -> None:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": QUESTION}],
        "search": {"strategy": "beam_search", "n": 4, "m": 2, "max_depth": 8, "seed": 1},
    }
    answered = httpx.post(f"{url}/v1/search", json=body, timeout=600)
    assert answered.status_code == 200, answered.text
    nodes = answered.json()["tree"]["nodes"]
    for node in nodes:
        print(node["id"], node["end"], json.dumps(node["text"]))
    texts = [node["text"] for node in nodes]
    assert not any(DELIMITER in text.strip() for text in texts)
    assert all(text.strip() for text in texts)
    ended = [node for node in nodes if node["end"] == StepEnd.DELIMITER]
    assert all(node["text"].endswith(DELIMITER) for node in ended)
    assert len(ended) >= 4
    assert max(len(node["id"]) for node in nodes) > 1
