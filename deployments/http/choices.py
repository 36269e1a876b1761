"""The choices of a reply: the path of the best answer and, on request, the best path of each next best answer."""

from collections.abc import Callable, Iterator, Sequence
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
    """What stands behind the thinking."""
    answer: str | None
    score: float | None
    """The path's score in [0, 1]; None where nothing was scored."""
    finish_reason: str
    """``tool_calls`` if it calls tools, ``stop`` if the path ended by itself or has an answer, ``length`` if a limit
    cut it off."""
    logprobs: tuple[TokenLogprob, ...] | None
    """Log-probabilities of the text's tokens, or of the calls'; None if not requested or not known."""
    calls: tuple[ChosenCall, ...] = ()
    thinking: str | None = None
    """The thinking of the path, without its marks; None: there is none."""

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
    parts = outcome.tree.parts_of(node)
    thinking = parts.thinking or None
    at_stop_text = text != node.text
    ended = at_stop_text or (node.step is not None and node.step.end is StepEnd.END_OF_SEQUENCE)
    end = len(text) if at_stop_text else None
    logprobs = _logprobs(node, parts.start, end, wanted.spell) if wanted.logprobs else None
    if wanted.calls is not None and (said := wanted.calls.said(outcome, node)).calls:
        named = zip(wanted.calls.ids(outcome, said), said.calls, strict=True)
        calls = tuple(ChosenCall(call_id, *call) for call_id, call in named)
        return Choice(said.content, answer, score, "tool_calls", logprobs, calls, thinking)
    answer = answer or None  # of texts in which there is none, where calls are answers too
    in_thought = parts.start == len(text) and bool(outcome.tree.thought_at(node))
    finish_reason = "stop" if (ended and not in_thought) or answer is not None else "length"
    return Choice(text[parts.start :], answer, score, finish_reason, logprobs, (), thinking)


def thinking_tokens(outcome: SearchOutcome, spell: Spell) -> int:
    """Number of generated tokens that are the thinking of the answering path."""
    node = outcome.selection.node
    if told := sum(step.thinking_tokens for each in node.path if (step := each.written_step)):
        return told
    start = outcome.tree.parts_of(node).start
    return sum(index < start for index, *_ in _tokens(node, spell)) if start else 0


def _logprobs(node: Node, start: int, end: int | None, spell: Spell) -> tuple[TokenLogprob, ...] | None:
    """Returns the generated tokens of a path's characters from ``start`` to before ``end``; None if a step has no
    log-probabilities."""
    if any((step := each.written_step) is None or step.token_logprobs is None for each in node.path):
        return None
    return tuple(
        TokenLogprob(text, max(logprob, MIN_LOGPROB))
        for index, text, logprob in _tokens(node, spell)
        if text and index + len(text) > start and (end is None or index < end)
    )


def _tokens(node: Node, spell: Spell) -> Iterator[tuple[int, str, float]]:
    """Yields the generated tokens of a path, each with the index of its first character and its log-probability (0 if
    there is none)."""
    index = 0
    for each in node.path:
        if (step := each.written_step) is not None:
            logprobs = step.token_logprobs or (0.0,) * len(step.token_ids)
            for text, logprob in zip(spell(step.token_ids), logprobs, strict=True):
                yield index, text, logprob
                index += len(text)
        index += len(each.hook.text) if each.hook else 0
