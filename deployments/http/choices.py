"""The choices of a reply: the path of the best answer and, on request, the best path of each next best answer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from deployments.service.tool_calls import CallReader
from search.answers.voting import SelectionRule, best_groups
from search.run.report import SearchOutcome
from search.tree import Node, StepEnd

MIN_LOGPROB = -9999.0
"""OpenAI's value for a token of probability zero: JSON has no minus infinity."""

Spell = Callable[[Sequence[int]], Sequence[str]]
"""From token ids to the text of each token; special tokens have no text."""


class ChoiceOptions(NamedTuple):
    """What a reply must contain of a search's outcome."""

    count: int  # type: ignore[assignment]  # over tuple.count
    """Maximum number of choices."""
    selection: SelectionRule
    """The rule that ranks the answers."""
    logprobs: bool
    spell: Spell
    calls: CallReader | None = None
    """Reads the answers' tool calls; None: there are no tools."""


class ChosenCall(NamedTuple):
    """A tool call of a choice."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class TokenLogprob(NamedTuple):
    text: str
    logprob: float
    """Nats."""


class Choice(NamedTuple):
    """One path, offered as an answer."""

    text: str
    answer: str | None
    score: float | None
    """The path's score in [0, 1]; None where nothing was scored."""
    finish_reason: str
    """``tool_calls`` if it calls tools, ``stop`` if the path ended by itself or has an answer, ``length`` if a limit
    cut it off."""
    logprobs: tuple[TokenLogprob, ...] | None
    """Log-probabilities of the text's tokens, or of the calls'; None if not requested or not known."""
    calls: tuple[ChosenCall, ...] = ()

    @property
    def content(self) -> str | None:
        """The text; None if there are calls alone."""
        return None if self.calls and not self.text.strip() else self.text


def choices(outcome: SearchOutcome, wanted: ChoiceOptions) -> list[Choice]:
    """Returns the best path of each of the best answers, the search's own answer first.

    There is at least one choice, and at most one per distinct answer.
    """
    selection = outcome.selection
    groups = best_groups(selection.groups, wanted.selection)[: wanted.count]
    if not groups:
        return [_choice(outcome, selection.node, selection.answer, selection.score, wanted)]
    return [_choice(outcome, group.best, group.answer, group.score, wanted) for group in groups]


def _choice(
    outcome: SearchOutcome, node: Node, answer: str | None, score: float | None, wanted: ChoiceOptions
) -> Choice:
    text = outcome.tree.text_of(node)
    at_stop_text = text != node.text
    ended = at_stop_text or (node.step is not None and node.step.end is StepEnd.END_OF_SEQUENCE)
    logprobs = _logprobs(node, len(text) if at_stop_text else None, wanted.spell) if wanted.logprobs else None
    if wanted.calls is not None and (said := wanted.calls.said(outcome, node)).calls:
        named = zip(wanted.calls.ids(outcome, said), said.calls, strict=True)
        calls = tuple(ChosenCall(call_id, *call) for call_id, call in named)
        return Choice(said.content, answer, score, "tool_calls", logprobs, calls)
    answer = answer or None  # of texts in which there is none, where calls are answers too
    finish_reason = "stop" if ended or answer is not None else "length"
    return Choice(text, answer, score, finish_reason, logprobs)


def _logprobs(node: Node, length: int | None, spell: Spell) -> tuple[TokenLogprob, ...] | None:
    """Returns the generated tokens in the first ``length`` characters of a path; None if a step has no
    log-probabilities."""
    found: list[TokenLogprob] = []
    characters = 0
    for each in node.path:
        step = each.written_step
        if step is None or step.token_logprobs is None:
            return None
        for text, logprob in zip(spell(step.token_ids), step.token_logprobs, strict=True):
            if length is not None and characters >= length:
                return tuple(found)
            if text:
                found.append(TokenLogprob(text, max(logprob, MIN_LOGPROB)))
            characters += len(text)
        characters += len(each.hook.text) if each.hook else 0
    return tuple(found)
