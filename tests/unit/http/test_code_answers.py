"""Requests whose answers are programs: checks in, the best program out, and what is refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from http_world import World, chat

from deployments.engines.rewards import execution
from deployments.engines.rewards.execution import ExecutionScorer, ExecutionSettings
from deployments.sandbox import Limits, Sandbox
from deployments.sandbox.trials import Trial, try_program
from deployments.service import code_answers
from search.answers.equivalence import AnswerMatcher
from search.tools.fair_slots import Requester

PRM = {"family": "execution", "program_seconds": 60.0}
RIGHT = "def f(x):\n    return x + 1\n"
ALSO_RIGHT = "def f(x):\n    return 1 + x\n"
WRONG = "def f(x):\n    return 2 * x\n"
"""Right for 1."""
ENDLESS = "def f(x):\n    while x:\n        pass\n"
"""The only one with a short time limit: on a busy machine any other may need long."""
CHECKS = [{"input": "f(1)", "output": "2"}, "assert f(2) == 3"]
EXAMPLE = 'Write it.\n\n```python\ndef f(x):\n    """Next.\n\n    >>> f(1)\n    2\n    >>> f(5)\n    6\n    """\n```'


@pytest_asyncio.fixture
async def coding(matcher: AnswerMatcher, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async def tried(sandbox: Sandbox, limits: Limits, program: str, *others: Any) -> Trial:
        limits = limits._replace(seconds=0.5) if program == ENDLESS else limits
        return await try_program(sandbox, limits, program, *others)

    for module in (execution, code_answers):
        monkeypatch.setattr(module, "try_program", tried)
    scorer = ExecutionScorer(ExecutionSettings.model_validate(PRM))
    await scorer.start()
    world = World(matcher, prm=PRM, scorer=scorer, limits={"checks": 4}, max_model_len=4096)
    yield world
    world.assert_idle()
    await scorer.close()
    assert world.code_answers is not None
    await world.code_answers.aclose()


def program(source: str) -> str:
    return f"Here:\n```python\n{source}```"


async def searched(world: World, sources: list[str], question: str, path: str = "", **search: Any) -> dict[str, Any]:
    world.generator.texts = [program(source) for source in sources]
    messages = [{"role": "user", "content": question}]
    body = chat(messages=messages, search={"strategy": "best_of_n", "n": len(sources), **search})
    async with world.client as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["search"]
    return found


@pytest.mark.parametrize("given", [{"checks": CHECKS}, {}])
async def test_the_program_that_passes_most_checks_answers(coding: World, given: dict[str, Any]) -> None:
    question = "Write f." if given else EXAMPLE
    sources = [WRONG, WRONG, WRONG, RIGHT, ALSO_RIGHT]
    best = await searched(coding, sources, question, selection="naive", **given)
    assert (best["answer"], best["score"], best["degraded"]) == (RIGHT, 1.0, False)
    voted = await searched(coding, sources, question, merge_siblings=False, **given)
    assert [(group["answer"], group["paths"], group["weight"]) for group in voted["answers"]] == [
        (RIGHT, 2, 2.0),
        (WRONG, 3, 1.5),
    ]


async def test_without_rewards_candidates_vote_by_what_they_do(coding: World) -> None:
    sources = [WRONG, RIGHT, ALSO_RIGHT, ENDLESS]
    found = await searched(coding, sources, EXAMPLE, strategy="self_consistency")
    assert (found["answer"], found["agreement"], found["prm_calls"]) == (RIGHT, 0.5, 0)
    assert found["degraded"]  # A program ran into its time limit.


async def test_a_time_limit_degrades_the_search_and_nothing_else(coding: World) -> None:
    found = await searched(coding, [ENDLESS, RIGHT], "Write f.", selection="naive", checks=CHECKS)
    assert (found["answer"], found["score"], found["degraded"]) == (RIGHT, 1.0, True)


async def test_programs_run_in_the_turns_of_their_search(coding: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: dict[str, set[Requester]] = {}

    def noting(module: Any) -> Any:
        run = module.try_program

        async def tried(*given: Any) -> Trial:
            waited.setdefault(module.__name__, set()).add(given[-1])
            trial: Trial = await run(*given)
            return trial

        return tried

    for module in (execution, code_answers):
        monkeypatch.setattr(module, "try_program", noting(module))
    await searched(coding, [RIGHT, WRONG], EXAMPLE)
    rewarded, voted = waited.values()
    assert rewarded == voted
    [requester] = voted
    assert requester.search_id


async def test_other_questions_have_ordinary_answers(coding: World) -> None:
    coding.generator.texts = ["So it is \\boxed{42}.\n```python\nprint(41)\n```"]
    async with coding.client as client:
        reply = await client.post("/v1/chat/completions", json=chat(search={"strategy": "best_of_n", "n": 2}))
    assert (reply.json()["search"]["answer"], reply.json()["search"]["score"]) == ("42", 0.5)


async def test_steps_of_a_program_are_scored_by_the_examples_of_the_question(coding: World) -> None:
    async with coding.client as client:
        body = {"question": EXAMPLE, "steps": ["It adds one.\n\n", program(WRONG)]}
        assert (await client.post("/v1/score", json=body)).json()["rewards"] == [0.5, 0.5]
        body["steps"][1] = program(RIGHT)
        assert (await client.post("/v1/score", json=body)).json()["rewards"] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("fields", "reason", "code"),
    [
        ({"search": {"checks": ["f(1)"] * 5}}, "search.checks may be at most 4 here, not 5", "above_limit"),
        ({"search": {"checks": ["f("]}}, "search.checks.0.input", None),
        (
            {"search": {"checks": ["f(1)"], "strategy": "greedy"}, "response_format": {"type": "json_object"}},
            "search.checks: not together with tools or a response_format",
            "unsupported_value",
        ),
    ],
)
async def test_what_cannot_be_checked_is_refused(
    coding: World, fields: dict[str, Any], reason: str, code: str | None
) -> None:
    async with coding.client as client:
        reply = await client.post("/v1/chat/completions", json=chat(**fields))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert reason in error["message"]
    assert error["param"].startswith("search.checks")
    assert code in (None, error["code"])
    assert coding.generator.calls == 0


async def test_a_server_that_runs_no_programs_refuses_checks_and_ignores_examples(world: World) -> None:
    async with world.client as client:
        refused = await client.post("/v1/chat/completions", json=chat(search={"checks": ["f(1)"]}))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "search.checks")
        messages = [{"role": "user", "content": ">>> f(1)\n2\n"}]
        reply = await client.post("/v1/chat/completions", json=chat(messages=messages))
    assert reply.json()["search"]["answer"] in ("41", "42")
