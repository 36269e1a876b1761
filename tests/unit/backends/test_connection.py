"""Searches without a server: a model behind a URL, connected to in a few lines."""

import asyncio
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.backends.connection import connect
from deployments.backends.errors import BackendError
from deployments.backends.settings import BackendSettings
from search.answers.equivalence import AnswerMatcher
from search.prompt import Prompt
from search.run.runner import run_search
from search.settings import parse_search
from tests.unit.backends.text_model import MODEL, TextModel
from tests.unit.search.search_fakes import FakeScorer

QUESTION = "How much is it?"
VOTE = {"strategy": "self_consistency", "n": 8, "seed": 3}
URL = "http://127.0.0.1:8000"


@pytest.fixture
def no_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads formulas takes seconds to start, and nothing here asks it."""

    async def later(_: AnswerMatcher) -> None:
        pass

    monkeypatch.setattr(AnswerMatcher, "start", later)


async def test_a_question_is_answered_by_a_vote_as_run_search_answers_it() -> None:
    server = TextModel()
    async with server.served() as pool, connect(pool.status()[0].url) as backend:
        assert backend.capabilities.model == MODEL
        outcome = await backend.answer(QUESTION, VOTE)
        prompt = Prompt(messages='[{"role": "user", "content": "How much is it?"}]', counted=12)
        same = await run_search(QUESTION, prompt, parse_search(VOTE), backend.environment, search_id="s")
        assert outcome.selection.answer is not None
        assert outcome.selection.answer == same.selection.answer
        assert outcome.cost.generated_tokens == same.cost.generated_tokens
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
        server.bodies.clear()
        await backend.answer(chat)
        assert [body["messages"] for body in server.bodies] == [chat] * 8


@pytest.mark.usefixtures("no_formulas")
async def test_what_is_known_of_a_backend_is_not_asked_again() -> None:
    server = TextModel()
    async with server.served() as pool:
        url = pool.status()[0].url
        async with connect(url) as first:
            known = first.capabilities
        server.bodies.clear()
        async with connect(BackendSettings(url=url), capabilities=replace(known, seeds=False)) as backend:
            assert server.bodies == []
            with pytest.raises(ValueError, match=r"^seed: the backend of 'text-model' takes no seeds"):
                await backend.answer(QUESTION, VOTE)


@pytest.mark.usefixtures("no_formulas")
async def test_a_search_that_needs_rewards_needs_a_scorer() -> None:
    beam = {"strategy": "beam_search", "n": 4, "m": 2, "max_step_tokens": 12, "max_depth": 3}
    async with TextModel().served() as pool:
        url = pool.status()[0].url
        async with connect(url) as backend:
            with pytest.raises(ValueError, match=r"^strategy: beam_search needs rewards: connect with a scorer"):
                await backend.answer(QUESTION, beam)
        async with connect(url, scorer=FakeScorer()) as backend:
            assert (await backend.answer(QUESTION, beam)).cost.prm_calls > 0


READING = (
    {"strategy": "select", "n": 8, "contested": 1.0, "readers": 2},
    {"strategy": "fuse", "schedule": [3, 2]},
    {"strategy": "refine", "n": 2, "depth": 1, "feedback": "critique", "selection": "majority"},
)


@pytest.mark.usefixtures("no_formulas")
@pytest.mark.parametrize("search", READING, ids=lambda search: search["strategy"])
async def test_solutions_are_read_in_their_chat_without_a_scorer(search: dict[str, Any]) -> None:
    server = TextModel()
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    async with server.served() as pool, connect(pool.status()[0].url) as backend:
        server.bodies.clear()
        outcome = await backend.answer(chat, search | {"seed": 3})
    assert outcome.cost.contexts > 0
    assert outcome.cost.prm_calls == 0
    shown = [body["messages"] for body in server.bodies if body["messages"] != chat]
    assert len(shown) >= outcome.cost.contexts
    assert all(system == chat[0] and QUESTION in read["content"] for system, read in shown)


@pytest.mark.usefixtures("no_formulas")
async def test_a_backend_that_is_not_there_is_told_and_leaves_nothing() -> None:
    with pytest.raises(BackendError, match="no connection"):
        async with connect("http://127.0.0.1:1"):
            pass


async def test_the_example_of_the_readme_runs() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    [program] = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert URL in program
    async with TextModel().served() as pool:
        program = program.replace(URL, pool.status()[0].url)
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, errors = await asyncio.wait_for(done.communicate(), timeout=60)
    assert errors == b""
    assert re.fullmatch(r"[0-3] 0\.\d+ \d+\n", said.decode())
