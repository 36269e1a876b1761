"""The endpoint's own application over a generator that does arithmetic without an engine: real routes, real searches.

Some questions are special: `LARGE` grows wide trees of distinct steps, `HOSTILE` gets steps that try to be more than
text, and each solution of `THOUGHTFUL` begins with `THINKING`.
"""

import asyncio
import hashlib
import operator
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from cluster.launch.application import free_port
from search.answers.equivalence import AnswerMatcher
from search.ports import Child, ChildGroup, ExpandRequest, ScoreRequest, StopCondition
from search.tree import NO_THOUGHT, Step, StepEnd, Thought
from tests.unit.http.http_world import World

QUESTION = "Start with 149. Multiply by 3. Add 229. Add 2. Add 19. Subtract 339. What is the result?"
LARGE = "Large. Start with 1." + " Add 1." * 9
HOSTILE = "Hostile. Start with 1. Add 2. Add 3."
THOUGHTFUL = "Thoughtful. Start with 1. Add 2. Add 3."
THINKING = "<think>\n🤔 One and two.\n</think>"
FRAMED = "a\u202eb\u2066c\u200b\u200dd\ufeff"
TEXTS = (
    "<script>document.title = 'owned'; window.owned = 1</script>",
    '<img src="https://elsewhere.example/x.png" onerror="window.owned = 1">',
    "</pre></script><svg onload=window.owned=1><a href=javascript:owned=1>go</a>",
    "שלום עולם: 1 + 2 = 3",
    FRAMED,
    "long " * 2_000,
)
SIGNS: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", operator.add),
    "subtract": ("-", operator.sub),
    "multiply by": ("*", operator.mul),
}
TASK = re.compile(r"(Add|Subtract|Multiply by) (\d+)", re.IGNORECASE)
FIRST_STEP = 1 << 20
"""Tokens from here on are steps; those below are letters of the prompt."""
SLIPS = 0.3
"""Share of the steps that are wrong."""


class Arithmetic:
    """Generator and scorer. A token is a letter of the prompt, or stands for a whole step."""

    def __init__(self, pause_s: float) -> None:
        """``pause_s``: between the children of one node and those of the next."""
        self._pause_s = pause_s
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        for item in request.expansions:
            letters = [token for token in item.prefix if token < FIRST_STEP]
            question = "".join(map(chr, letters)).rpartition("<user>")[2]
            written = [self._texts[token - FIRST_STEP] for token in item.prefix if token >= FIRST_STEP]
            written = [text for before, text in zip([None, *written], written, strict=False) if text != before]
            children = []
            for branch in item.branches:
                steps = self._steps(question, written, branch.seed, request.stop_condition is StopCondition.SOLUTION)
                cached = len(item.prefix) // 16 * 16
                children.append(Child(item.parent, branch.index, steps, cached))
            await asyncio.sleep(self._pause_s)
            yield ChildGroup(tuple(children))

    async def score(self, request: ScoreRequest) -> list[list[float]]:
        return [[_reward(text) for text in item.steps[-item.unscored :]] for item in request.items]

    def _steps(self, question: str, written: Sequence[str], seed: int, whole: bool) -> tuple[Step, ...]:
        texts = [*written]
        steps: list[Step] = []
        while not steps or (whole and steps[-1].end is StepEnd.DELIMITER):
            text, ends = _next(question, texts, random.Random(seed + len(texts)))
            thought = NO_THOUGHT
            if not texts and question.startswith("Thoughtful"):
                text, thought = f"{THINKING}\n\n{text}", Thought(3, len(THINKING))
            texts.append(text)
            number = self._numbers.setdefault(text, len(self._texts))
            if number == len(self._texts):
                self._texts.append(text)
            tokens = (FIRST_STEP + number,) * 7
            each = tuple(-0.02 - 0.7 * ((number * 37 + index * 11) % 10) / 10 for index in range(len(tokens)))
            end = StepEnd.END_OF_SEQUENCE if ends else StepEnd.DELIMITER
            steps.append(Step(tokens, text, end, sum(each), each, thought))
        return tuple(steps)


def _next(question: str, written: Sequence[str], die: random.Random) -> tuple[str, bool]:
    """The next step, and whether it is the last."""
    tasks = TASK.findall(question)
    if len(written) >= len(tasks):
        return rf"The answer is \boxed{{{_value(question, written)}}}", True
    word, operand = tasks[len(written)]
    if question.startswith("Hostile"):
        return f"{die.choice(TEXTS)}\n\n", False
    sign, calculate = SIGNS[word.lower()]
    value = _value(question, written)
    result = calculate(value, int(operand))
    if die.random() < SLIPS:
        result += die.choice([-10, -1, 1, 2, 10, 100])
    note = f" (#{die.randrange(10**6)})" if question.startswith("Large") else ""
    return f"{value} {sign} {operand} = {result}{note}\n\n", False


def _value(question: str, written: Sequence[str]) -> int:
    found = re.findall(r"= (-?\d+)", written[-1]) if written else re.findall(r"Start with (\d+)", question)
    return int(found[-1]) if found else 0


def _reward(text: str) -> float:
    noise = hashlib.blake2b(text.encode(), digest_size=1).digest()[0] / 255
    equation = re.match(r"(-?\d+) ([-+*]) (\d+) = (-?\d+)", text)
    if equation is None:
        return 0.55 + 0.4 * noise
    left, sign, right, result = equation.groups()
    calculate = next(each for known, each in SIGNS.values() if known == sign)
    return 0.82 + 0.17 * noise if calculate(int(left), int(right)) == int(result) else 0.04 + 0.6 * noise**2


@contextmanager
def served(
    matcher: AnswerMatcher, store: str | None, keys: Sequence[str] = (), pause_s: float = 0.02, port: int | None = None
) -> Iterator[str]:
    """The URL of the application, on a thread of its own. ``store``: a folder for kept searches."""
    settings: dict[str, Any] = {"store": {"path": store}} if store else {}
    limits = {"seconds": 120.0, "n": 256, "nodes": 5000}
    world = World(matcher, keys=keys, limits=limits, http={"isolate_keys": False}, **settings)
    arithmetic = Arithmetic(pause_s)
    world.generator.expand = arithmetic.expand  # type: ignore[method-assign]
    world.scorer.score = arithmetic.score  # type: ignore[method-assign]
    at = port or free_port()
    server = uvicorn.Server(uvicorn.Config(world.app, port=at, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
            assert thread.is_alive()
        yield f"http://127.0.0.1:{at}"
    finally:
        server.should_exit = True
        thread.join(20)
