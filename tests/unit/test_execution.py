"""The verifier that runs programs: rewards and votes by what programs do, in the real sandbox."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deployments.config import AppConfig
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards import execution_of, parse_prm
from deployments.engines.rewards.execution import ExecutionScorer, ExecutionSettings
from deployments.engines.rewards.several import SeveralScorer, SeveralSettings
from deployments.sandbox import Sandbox
from deployments.sandbox.sandbox import Run, Session
from deployments.sandbox.trials import try_program
from deployments.service.code_answers import CodeAnswers
from search.answers.checks import Check, Checks, checks_of
from search.answers.equivalence import AnswerMatcher
from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest
from search.run.environment import SearchEnvironment
from search.tools.fair_slots import Requester
from search.tree import SearchTree

CHECKS = Checks("import math\n", (Check("f(1)", "2"), Check("f(2)", "3"), Check("assert f(3) == 4")))
RIGHT = "```python\ndef f(x):\n    return x + 1\n```"
HALF = "```python\ndef f(x):\n    return 2\n```"
ENDLESS = "```python\ndef f(x):\n    while x:\n        pass\n```"
SETTINGS = ExecutionSettings(program_seconds=60.0)
SHORT = ExecutionSettings(program_seconds=0.3)
"""Of programs that never end: on a busy machine another one may need longer, too."""


def asked(*paths: tuple[str, ...], ended: bool = True, checks: Checks | None = CHECKS) -> ScoreRequest:
    items = tuple(ScoreItem(path, len(path), ended) for path in paths)
    return ScoreRequest("search", "question", items, 20.0, checks=checks)


@pytest_asyncio.fixture
async def scorer() -> AsyncIterator[ExecutionScorer]:
    made = ExecutionScorer(SETTINGS)
    await made.start()
    yield made
    assert await made.check_integrity() == []
    await made.close()


async def test_the_reward_of_a_path_is_the_share_of_checks_that_its_program_passes(scorer: ExecutionScorer) -> None:
    other = "```python\ndef g(x):\n    return x\n```"
    broken = "```python\ndef f(x:\n```"
    helped = "```python\ndef f(x):\n    return x + math.floor(1.5)\n```"
    rows = await scorer.score(asked((RIGHT,), (HALF,), (other,), (broken,), ("I do not know",), (helped,)))
    assert rows == [[1.0], [pytest.approx(1 / 3)], [0.0], [0.0], [0.0], [1.0]]
    assert rows.unsure == frozenset()
    assert scorer.stats()["calls"] == 5  # The path without a program runs nothing.


async def test_a_step_is_scored_once_its_program_is_complete(scorer: ExecutionScorer) -> None:
    path = ("So:\n\n", "```python\ndef f(x):\n\n", "    return x + 1\n```\n\n", "It adds one.")
    assert await scorer.score(asked(path)) == [[0.5, 0.5, 1.0, 1.0]]
    assert await scorer.score(asked(path[:2], ended=False)) == [[0.5, 0.5]]
    unclosed = (*path[:2], "    return x + 1\n")
    assert await scorer.score(asked(unclosed)) == [[0.5, 0.5, 1.0]]
    assert await scorer.score(asked(unclosed, ended=False)) == [[0.5, 0.5, 0.5]]
    later = ScoreRequest("search", "question", (ScoreItem(path, 1, True), ScoreItem(path[:2], 1)), 20.0, checks=CHECKS)
    assert await scorer.score(later) == [[1.0], [0.5]]


async def test_equal_programs_of_a_request_run_once(scorer: ExecutionScorer) -> None:
    assert await scorer.score(asked((RIGHT,), (f"Look:\n{RIGHT}\nDone.",), (HALF,))) == [[1.0], [1.0], [1 / 3]]
    assert scorer.stats()["calls"] == 2


async def test_a_program_without_checks_is_worth_whether_it_runs(scorer: ExecutionScorer) -> None:
    no_checks = Checks()
    assert await scorer.score(asked((RIGHT,), ("```python\n1 / 0\n```",), checks=no_checks)) == [[1.0], [0.0]]
    assert await scorer.score(asked((RIGHT, RIGHT), checks=None)) == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("program", "unsure"),
    [
        (ENDLESS, True),
        ("```python\nwhile True:\n    pass\n```", True),
        ("```python\ndef f(x):\n    return [x] * 10**9\n```", False),
        ("```python\ndef f(x):\n    return f(x)\n```", False),
        ("```python\ndef f(x):\n    return open('/etc/passwd').read()\n```", False),
    ],
)
async def test_a_limit_fails_the_checks_that_are_left(program: str, unsure: bool) -> None:
    scorer = ExecutionScorer(SHORT if unsure else SETTINGS)
    await scorer.start()
    rows = await scorer.score(asked((program,)))
    assert (rows, rows.unsure) == ([[0.0]], frozenset({0} if unsure else ()))
    await scorer.close()


HEAP = "import heapq\n\ndef f(x):\n    return heapq.nsmallest(1, [x + 1])[0]\n"
YIELDS = "def g(x):\n    yield x + 1\n\ndef f(x):\n    return next(g(x))\n"
INSIDE = "def f(x):\n    import fractions\n    return int(fractions.Fraction(x) + 1)\n"
INVENTED = "import my_helpers\n\ndef f(x):\n    return my_helpers.next(x)\n"


@pytest.mark.parametrize(
    ("source", "reward"),
    [(HEAP, 0.5), (YIELDS, 0.5), (INSIDE, 0.5), (INVENTED, 0.0), ("raise NotImplementedError", 0.0)],
)
async def test_nothing_is_known_of_a_program_for_which_the_sandbox_lacks_something(
    scorer: ExecutionScorer, source: str, reward: float
) -> None:
    rows = await scorer.score(asked((f"```python\n{source}```",), (RIGHT,)))
    assert (rows, rows.unsure) == ([[reward], [1.0]], frozenset())


MAIN = "if __name__ == '__main__':\n    n = int(input('n? '))\n    print(f(n))"


@pytest.mark.parametrize(
    "program",
    [
        f"def f(x):\n    return x + 1\n\n{MAIN}\n",
        f"{MAIN}  # of its own\n\ndef f(x):\n    return x + 1\n",
        f'text = """\n{MAIN}\n"""\ndef f(x):\n    return x + len(text) - len(text) + 1\n',
        f"def f(x):\r\n    return x + 1\r\n{MAIN}\r\n",
    ],
)
async def test_a_program_runs_as_if_it_were_imported(scorer: ExecutionScorer, program: str) -> None:
    assert await scorer.score(asked((f"```python\n{program}```",))) == [[1.0]]


async def test_a_question_whose_own_program_fails_or_never_ends_spoils_no_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Session.run

    async def with_time(session: Session, source: str) -> Run:
        """What comes behind the endless one is to end by itself, on a worker of its own."""
        session._limits = SHORT.limits if "while" in source else SETTINGS.limits
        return await run(session, source)

    monkeypatch.setattr(Session, "run", with_time)
    program, check = "def f(x): return x + 1\n", (Check("f(1)", "2"),)
    async with Sandbox(1) as sandbox:
        cut = await try_program(sandbox, SETTINGS.limits, program, Checks("while True: pass", check))
        imports = Checks("import heapq", check)
        needs = "def f(x): return heapq.nsmallest(1, [x + 1])[0]\n"
        lacking = await try_program(sandbox, SETTINGS.limits, needs, imports)
        known = await try_program(sandbox, SETTINGS.limits, program, imports)
        wrong = await try_program(sandbox, SETTINGS.limits, "def f(x): return y\n", Checks("1 / 0", check))
    assert (cut.share, cut.unsure, cut.lacking) == (1.0, True, False)
    assert (lacking.share, lacking.lacking) == (0.0, True)
    assert (known.share, known.unsure, known.lacking) == (1.0, False, False)
    assert (wrong.share, wrong.lacking) == (0.0, False)


async def test_a_check_sees_what_earlier_ones_left_and_a_new_program_sees_nothing() -> None:
    unknown = Check("secret", "Traceback (most recent call last):\nNameError: not defined")
    checks = Checks(checks=(Check("x = f(1)", ""), Check("x", "2"), unknown))
    async with Sandbox(1) as sandbox:
        first = await try_program(sandbox, SETTINGS.limits, "secret = 1\ndef f(x): return x + secret\n", checks)
        second = await try_program(sandbox, SETTINGS.limits, "def f(x): return x + 1\n", checks)
    assert (first.share, second.share) == (pytest.approx(2 / 3), 1.0)


async def test_a_scorer_that_was_not_started_fails(scorer: ExecutionScorer) -> None:
    with pytest.raises(ScorerError):
        await ExecutionScorer(SETTINGS).score(asked((RIGHT,)))
    assert await scorer.canary() > 0


@pytest.mark.parametrize(("combine", "right", "half"), [("mean", 0.625, (1 / 3 + 0.25) / 2), ("min", 0.25, 0.25)])
async def test_a_model_beside_the_verifier_scores_alone_where_nothing_runs(
    combine: str, right: float, half: float
) -> None:
    model = {"prm": {"family": "function", "function": f"{__name__}:quarter"}}
    given = {"family": "several", "of": [{"prm": SETTINGS.model_dump()}, model], "combine": combine}
    several = parse_prm(given)
    assert isinstance(several, SeveralSettings)
    assert execution_of(several) == SETTINGS
    made = SeveralScorer(several)
    await made.start()
    found = await made.score(asked((RIGHT,), (HALF,)))
    assert (found, found.unsure) == ([[pytest.approx(right)], [pytest.approx(half)]], frozenset())
    assert await made.score(asked((RIGHT,), (HALF,), checks=None)) == [[0.25], [0.25]]
    await shut_down(made)


async def test_a_sandbox_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = CodeAnswers(1, SETTINGS.limits)
    with monkeypatch.context() as broken:
        broken.setenv("MONTY_BIN", "/nowhere/monty")
        with pytest.raises(EngineStartError, match="the sandbox did not start"):
            await ExecutionScorer(SETTINGS).start()
        assert await grouped(programs, CHECKS, "f = 1", "f = 2") == ([[0], [1]], 2, True)
    assert await grouped(programs, CHECKS, "f = lambda x: 1") == ([[0]], 0, False)
    await programs.aclose()


async def shut_down(scorer: SeveralScorer) -> None:
    scorer.shutdown()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


async def test_the_programs_of_one_search_do_not_keep_another_one_waiting() -> None:
    scorer = ExecutionScorer(SETTINGS.model_copy(update={"workers": 1}))  # the order is that of the turns alone
    await scorer.start()
    programs = [f"```python\ndef f(x):\n    return x + 1 + 0 * {n}\n```" for n in range(40)]
    many = asyncio.create_task(scorer.score(asked(*((each,) for each in programs))))
    while not scorer.stats()["running"]:
        await asyncio.sleep(0)
    assert await scorer.score(asked((RIGHT,))._replace(search_id="other", cache_salt="other")) == [[1.0]]
    # When the other one comes, the first of many runs, and the turn is many's once more. One has begun since.
    assert scorer.stats()["calls"] == 4
    assert not many.done()
    assert await many == [[1.0]] * 40
    await scorer.close()


def quarter(question: str, steps: tuple[str, ...]) -> float:
    return 0.25


def test_the_family_needs_no_model() -> None:
    config = AppConfig.model_validate({"prm": {"family": "execution", "workers": 3}})
    assert config.engines.keys() == {"generator"}
    assert config.execution == ExecutionSettings(workers=3)
    assert AppConfig().execution is None


async def grouped(programs: CodeAnswers, checks: Checks, *answers: str) -> tuple[list[list[int]], int, bool]:
    tree = SearchTree()
    shared: Any = SearchEnvironment(None, None, 100, AnswerMatcher())  # type: ignore[arg-type]
    environment = programs.environment(shared, checks, tree, Requester("key", "search"))
    groups, unread = await environment.matcher.grouping(answers)
    assert (await environment.matcher.grouping(answers)).groups == groups
    return groups, unread, tree.degraded


async def test_programs_that_do_the_same_are_one_answer() -> None:
    programs = CodeAnswers(2, SETTINGS.limits)
    right, other, wrong = "f = lambda x: x + 1", "def f(x):\n    return 1 + x", "f = lambda x: x"
    # Programs that show nothing have nothing in common.
    fails, fails_too = "f = lambda x: x / 0", "def f(x):\n    return 1 / (x - x)"
    found = await grouped(programs, CHECKS, right, wrong, other, fails, right, fails_too)
    assert found == ([[0, 2, 4], [1], [3], [5]], 0, False)
    assert await grouped(programs, CHECKS, HEAP, HEAP + "#", HEAP) == ([[0, 2], [1]], 0, False)
    assert await grouped(programs, Checks(), right, other, right) == ([[0, 2], [1]], 0, False)
    sets = Checks(checks=(Check("f([3, 1, 2])", "{1, 2, 3}"),))
    of_sets = "f = set", "f = lambda x: set(sorted(x))", "f = lambda x: {1, 2}"
    assert await grouped(programs, sets, *of_sets) == ([[0, 1], [2]], 0, False)
    await programs.aclose()


async def test_a_program_that_never_ends_makes_the_vote_unsure() -> None:
    short, long = CodeAnswers(1, SHORT.limits), CodeAnswers(1, SETTINGS.limits)
    endless = "def f(x):\n    while x: pass"
    assert await grouped(short, CHECKS, endless, endless) == ([[0, 1]], 1, True)
    assert await grouped(long, CHECKS, "f = lambda x: x") == ([[0]], 0, False)
    await short.aclose()
    await long.aclose()


async def test_unsure_rewards_of_one_member_are_those_of_several() -> None:
    model = {"prm": {"family": "function", "function": f"{__name__}:quarter"}}
    several = parse_prm({"family": "several", "of": [{"prm": SHORT.model_dump()}, model]})
    assert isinstance(several, SeveralSettings)
    made = SeveralScorer(several)
    await made.start()
    assert (await made.score(asked(("Nothing.",), (ENDLESS,)))).unsure == frozenset({1})
    await shut_down(made)


WRONG_EXAMPLES = {47, 81, 116, 130, 148, 149}
"""Problems of HumanEval with examples in the docstring that its own solution contradicts."""


async def test_examples_of_human_eval_know_its_solutions_from_broken_ones(scorer: ExecutionScorer) -> None:
    path = Path(__file__).parent / "humaneval" / "HumanEval.jsonl.gz"
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    wrong, examples = set(), 0
    for number, record in enumerate(records):
        if (checks := checks_of(record["prompt"])) is None:
            continue
        examples += 1
        right, broken = (
            f"```python\n{record['prompt']}{body}```"
            for body in (record["canonical_solution"], "    return NotImplemented\n")
        )
        [[solution], [other]] = await scorer.score(asked((right,), (broken,), checks=checks))
        assert other == 0.0
        if solution < 1.0:
            wrong.add(number)
    assert (examples, wrong) == (142, WRONG_EXAMPLES)
