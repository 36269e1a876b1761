"""A reward model that `banyan train-prm` has written, served: rewards as transformers computes them from its files. And
a training that was killed."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen2Model
from typer.testing import CliRunner

from cluster.cli.main import app
from deployments.engines.rewards.step_head import StepHead, StepHeadSettings
from deployments.engines.scoring import ScoringEngine
from search.ports import ScoreItem, ScoreRequest
from tests.engine.conftest import SETTLE_S, quiet, stop

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

DEADLINE_S = 240.0
KILLED = """
import os, signal
from cluster.cli.main import app
from cluster.training.fit import Fit

save = Fit._save

def save_and_die(self):
    save(self)
    os.kill(os.getpid(), signal.SIGKILL)

Fit._save = save_and_die
app()
"""
"""A training that is killed once it has saved an epoch."""
QUESTION = "Start with 12. Add 30. What is the result?"
PATHS = [
    ("12 + 30 = 42\n\n", r"The answer is \boxed{42}"),
    ("12 + 30 = 43\n\n", r"The answer is \boxed{43}"),
    ("12 + 30 = 42 <extra_0>\n\n", "<|im_end|>", "7"),
]


class Trained(NamedTuple):
    """A trained model: never interrupted, and killed and resumed."""

    whole: Path
    resumed: Path
    killed_with: int


def arguments(pool: Path, output: Path) -> list[str]:
    settings = ["--layers", "1", "--depth", "5", "--epochs", "12", "--patience", "12"]
    return ["train-prm", str(pool), str(output), *settings]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Two trainings on the same sampled solutions, one of them killed after an epoch in a process of its own and
    resumed."""
    directory = tmp_path_factory.mktemp("trained")
    pool, whole, resumed = directory / "pool.jsonl", directory / "whole", directory / "resumed"
    with pool.open("w") as file:
        for first in range(10, 60):
            for result in (first + 30, first + 31):
                steps = [f"{first} + 30 = {result}", rf"The answer is \boxed{{{result}}}"]
                line = {
                    "question": QUESTION.replace("12", str(first)),
                    "steps": steps,
                    "correct": result == first + 30,
                }
                file.write(json.dumps(line) + "\n")
    command = [sys.executable, "-c", KILLED, *arguments(pool, resumed)]
    killed_with = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=DEADLINE_S).returncode
    assert (resumed / "training" / "checkpoint.pt").exists()
    assert not (resumed / "metrics.json").exists()
    threads = torch.get_num_threads()
    for output in (resumed, whole):
        ended = CliRunner().invoke(app, arguments(pool, output))
        assert ended.exit_code == 0, ended.output
    yield Trained(whole, resumed, killed_with)
    torch.set_num_threads(threads)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def engine(trained: Trained) -> AsyncIterator[ScoringEngine]:
    engine = ScoringEngine(StepHeadSettings(model=str(trained.whole)))
    with quiet():
        await engine.start()
    yield engine
    assert await engine.check_integrity(SETTLE_S) == []
    await stop(engine)


async def test_a_killed_training_goes_on_to_the_same_weights(trained: Trained) -> None:
    assert trained.killed_with == -signal.SIGKILL
    whole, resumed = ((path / "model.safetensors").read_bytes() for path in (trained.whole, trained.resumed))
    assert whole == resumed


async def test_served_rewards_equal_those_of_transformers(engine: ScoringEngine, trained: Trained) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained.whole)
    trunk = Qwen2Model.from_pretrained(trained.whole).eval()
    head = load_file(trained.whole / "model.safetensors")
    encoder = StepHead(StepHeadSettings(model=str(trained.whole)), tokenizer)
    for steps in PATHS:
        token_ids, tags = encoder.encode(QUESTION, steps)
        with torch.inference_mode():
            hidden = trunk(input_ids=torch.tensor([token_ids])).last_hidden_state[0, tags]
            inner = torch.relu(hidden @ head["score.0.weight"].T + head["score.0.bias"])
            expected = (inner @ head["score.2.weight"].T + head["score.2.bias"]).softmax(dim=-1)[:, 1].tolist()
        [rewards] = await engine.score(ScoreRequest("search", QUESTION, [ScoreItem(steps, len(steps))], DEADLINE_S))
        assert rewards == pytest.approx(expected, abs=1e-4)
        assert len(rewards) == len(steps)
