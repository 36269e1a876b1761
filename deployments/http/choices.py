"""What a reply offers: the answering path and, where more are asked for, the best paths of the next best answers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from search.answers.voting import SelectionRule, best_groups
from search.run.report import SearchOutcome
from search.tree import Node, StepEnd

MIN_LOGPROB = -9999.0
"""What OpenAI says of a token that the model gave no chance at all: JSON has no minus infinity."""

Spell = Callable[[Sequence[int]], Sequence[str]]
"""What each token says alone; special ones say nothing."""


class Wanted(NamedTuple):
    """What of a search's outcome a reply is to have."""

    count: int  # type: ignore[assignment]  # over tuple.count
    """Choices, at most."""
    selection: SelectionRule
    """The rule by which one answer is better than another."""
    logprobs: bool
    spell: Spell


class TokenLogprob(NamedTuple):
    text: str
    logprob: float
    """Nats."""


class Choice(NamedTuple):
    """One path that answers."""

    text: str
    answer: str | None
    score: float | None
    """Of the path, in [0, 1]; None where nothing was scored."""
    finish_reason: str
    """``stop`` where the path says what it had to say, ``length`` where a limit cut it off."""
    logprobs: tuple[TokenLogprob, ...] | None
    """Of the text's tokens, where they were asked for."""


def choices(outcome: SearchOutcome, wanted: Wanted) -> list[Choice]:
    """The best path of each of the best answers, the search's own answer first. One at least, and no more than there
    are distinct answers."""
    selection = outcome.selection
    groups = best_groups(selection.groups, wanted.selection)[: wanted.count]
    if not groups:
        return [_choice(outcome, selection.node, selection.answer, selection.score, wanted)]
    return [_choice(outcome, group.best, group.answer, group.score, wanted) for group in groups]


def _choice(outcome: SearchOutcome, node: Node, answer: str | None, score: float | None, wanted: Wanted) -> Choice:
    text = outcome.tree.text_of(node)
    stopped = text != node.text
    ended = stopped or (node.step is not None and node.step.end is StepEnd.END_OF_SEQUENCE)
    return Choice(
        text,
        answer,
        score,
        "stop" if ended or answer is not None else "length",
        _logprobs(node, len(text) if stopped else None, wanted.spell) if wanted.logprobs else None,
    )


def _logprobs(node: Node, length: int | None, spell: Spell) -> tuple[TokenLogprob, ...] | None:
    """Of the tokens of a path, up to that many characters; None where the generator did not say."""
    found: list[TokenLogprob] = []
    characters = 0
    for step in node.steps:
        if step.token_logprobs is None:
            return None
        for text, logprob in zip(spell(step.token_ids), step.token_logprobs, strict=True):
            if length is not None and characters >= length:
                return tuple(found)
            if text:
                found.append(TokenLogprob(text, max(logprob, MIN_LOGPROB)))
            characters += len(text)
    return tuple(found)
