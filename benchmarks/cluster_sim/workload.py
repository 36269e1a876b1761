"""What the simulated models write: steps of recorded searches, drawn anew for every search.

For each recorded problem the simulation keeps families: the children that were written below one step. A step that is
expanded gets one of the families of its depth, chosen by the step's tokens; its child j is child j of the family. So
lengths, ends, rewards and the share of repeated siblings are as recorded, for any strategy and width, and equal steps
get equal children.
"""

import json
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from search.ports import Branch, Child, ExpandItem, StopCondition
from search.run.report import SearchOutcome
from search.tree import Node, Step, StepEnd

MAX_STEP_TOKENS = 4096
"""Number of token ids reserved for each text."""


class Written(NamedTuple):
    """One recorded step."""

    tokens: int
    text: int
    """Index of its text in the family."""
    answer: int
    """Index of the answer that its path ends with; 0 if the path goes on."""
    reward: float


class Problem(NamedTuple):
    """One recorded search."""

    prompt_tokens: int
    nodes: int
    generated_tokens: int
    levels: tuple[tuple[tuple[Written, ...], ...], ...]
    """Families by the depth of their parent."""


def recorded(outcome: SearchOutcome, prompt_tokens: int) -> dict[str, Any]:
    """The JSON of a search, from which `problems_of` makes a `Problem`."""
    answers: dict[str | None, int] = {}
    levels: list[list[list[tuple[int, int, int, float]]]] = []
    for parent in sorted([outcome.tree.root, *outcome.tree.nodes], key=lambda node: node.serial):
        written = [node for node in parent.children.values() if node.step is not None]
        if not written:
            continue
        texts: dict[str, int] = {}
        family = []
        for node in written:
            assert node.step is not None
            text = texts.setdefault(node.step.text, len(texts))
            ends = node.first.ends
            answer = answers.setdefault(outcome.tree.answer_of(node), len(answers) + 1) if ends else 0
            family.append((len(node.step.token_ids), text, answer, round(_reward(node), 4)))
        while len(levels) <= parent.depth:
            levels.append([])
        levels[parent.depth].append(family)
    cost = outcome.cost
    return {
        "prompt_tokens": prompt_tokens,
        "nodes": cost.nodes,
        "generated_tokens": cost.generated_tokens,
        "levels": json.dumps(levels, separators=(",", ":")),  # one string: no person reads it
    }


def _reward(node: Node) -> float:
    return 0.5 if node.first.reward is None else node.first.reward


def problems_of(kept: Sequence[dict[str, Any]]) -> tuple[Problem, ...]:
    """The recorded problems of a result."""
    problems = []
    for each in kept:
        levels = tuple(
            tuple(tuple(Written(*step) for step in family) for family in level) for level in json.loads(each["levels"])
        )
        problems.append(Problem(each["prompt_tokens"], each["nodes"], each["generated_tokens"], levels))
    return tuple(problems)


def load_problems(path: Path) -> tuple[Problem, ...]:
    return problems_of(json.loads(path.read_text())["problems"])


class Language:
    """Writes and scores the steps of searches. The id of a search is a number, which selects one of the problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        self._said = lru_cache(100_000)(_make_step)

    def problem(self, search_id: str) -> Problem:
        return self.problems[int(search_id) % len(self.problems)]

    def prompt(self, search_id: str) -> tuple[int, ...]:
        """Token ids of the prompt; no other search has any of them."""
        first = -1 - int(search_id) * MAX_STEP_TOKENS
        return tuple(range(first, first - self.problem(search_id).prompt_tokens, -1))

    def child(self, search_id: str, item: ExpandItem, branch: Branch, stop_condition: StopCondition) -> Child:
        """The child that is written for a branch. Its cached tokens are left to the engine."""
        levels = self.problem(search_id).levels
        steps: list[Step] = []
        depth, tokens, left, index = len(item.parent), item.prefix, branch.max_tokens, branch.index
        while True:
            step = self._step(levels, depth, tokens, index)
            if len(step.token_ids) >= left:
                step = Step(step.token_ids[:left], step.text, StepEnd.LENGTH)
            steps.append(step)
            left -= len(step.token_ids)
            if stop_condition is StopCondition.STEP or step.end is not StepEnd.DELIMITER or not left:
                return Child(item.parent, branch.index, tuple(steps), 0)
            depth, tokens, index = depth + 1, (*tokens, *step.token_ids), branch.seed & 0xFFFF

    def reward(self, search_id: str, text: str) -> float:
        return self._recorded(search_id, text).reward

    def path_tokens(self, search_id: str, texts: Sequence[str]) -> list[int]:
        """Token ids of a prompt and the steps with these texts."""
        tokens = list(self.prompt(search_id))
        for text in texts:
            level, family, _ = _parse_name(text)
            tokens += self._said(level, family, self._recorded(search_id, text)).token_ids
        return tokens

    def _recorded(self, search_id: str, text: str) -> Written:
        level, family, number = _parse_name(text)
        return next(step for step in self.problem(search_id).levels[level][family] if step.text == number)

    def _step(
        self, levels: Sequence[Sequence[Sequence[Written]]], depth: int, prefix: tuple[int, ...], index: int
    ) -> Step:
        level = min(depth, len(levels) - 1)
        family = zlib.crc32(b"%d %d" % (prefix[0], prefix[-1])) % len(levels[level])
        # Lookaheads have negative indices.
        return self._said(level, family, levels[level][family][index % len(levels[level][family])])


def _parse_name(text: str) -> tuple[int, int, int]:
    """Level, family, and index of the text."""
    level, family, number = text.split(" ", 1)[0].split(".")
    return int(level), int(family), int(number)


def _make_step(level: int, family: int, written: Written) -> Step:
    name = f"{level}.{family}.{written.text}"
    first = ((level << 12 | family) << 10 | written.text) * MAX_STEP_TOKENS
    tokens = tuple(range(first, first + written.tokens))
    if written.answer:
        return Step(tokens, f"{name} \\boxed{{{written.answer}}}", StepEnd.END_OF_SEQUENCE)
    return Step(tokens, f"{name} goes on\n\n", StepEnd.DELIMITER)
