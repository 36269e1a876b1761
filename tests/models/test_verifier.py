"""A published model as a generative verifier: Qwen2.5-Coder-0.5B-Instruct, with the default template. It is a bad one;
that its verdicts come, and from where, is the behaviour under test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deployments.engines.rewards.family import Query
from deployments.engines.rewards.generative import Generative
from deployments.engines.rewards.generative_presets import GenerativeSettings
from deployments.engines.verification import VerificationEngine
from search.ports import ScoreItem, ScoreRequest
from tests.models.conftest import model_directory

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = (
    "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes of babysitting. How much did she earn?"
)
RIGHT = ("Weng earns 12/60 = $0.2 per minute.\n\n", "Working 50 minutes, she earned 0.2 x 50 = $10.\n\n")
WRONG = ("Weng earns 12 x 60 = $720 per minute.\n\n", "Working 50 minutes, she earned 720 x 50 = $36.\n\n")
SAMPLES = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[VerificationEngine]:
    engine = VerificationEngine(
        GenerativeSettings(
            model=str(model_directory("Qwen2.5-Coder-0.5B-Instruct")),
            dtype="bfloat16",
            cpu_threads=2,
            max_model_len=1536,
            kv_cache_memory_bytes=1 << 30,
            samples=SAMPLES,
            max_tokens=512,
        )
    )
    await engine.start()
    yield engine
    assert await engine.check_integrity(30.0) == []
    engine.shutdown()


async def test_critiques_are_written_and_each_has_a_verdict(
    engine: VerificationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[object] = []
    plain = Generative.verdict

    def verdict(family: Generative, query: Query, critique: str, stopped_by: object = None) -> Query:
        print(repr(critique), stopped_by)
        stopped.append(stopped_by)
        return plain(family, query, critique, stopped_by)

    monkeypatch.setattr(Generative, "verdict", verdict)
    items = tuple(ScoreItem(path[:end]) for path in (RIGHT, WRONG) for end in (1, 2))
    rows = await engine.score(ScoreRequest("search", QUESTION, items, 600.0))
    print([round(reward, 3) for [reward] in rows], rows.cost)
    assert all(0 < reward < 1 for [reward] in rows)
    assert len({reward for [reward] in rows}) == len(rows)
    assert rows.cost.critiques == SAMPLES * len(items) == len(stopped)
    assert 20 * rows.cost.critiques < rows.cost.generated_tokens < 512 * rows.cost.critiques
    assert any(each is not None for each in stopped), "some verdicts are the model's own"
    engine.forget()
    again = await engine.score(ScoreRequest("search", QUESTION, items[:1], 600.0))
    assert again[0] == [pytest.approx(rows[0][0], abs=0.2)], "the same seeds; in 16 bits batches differ"
