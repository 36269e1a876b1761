"""Which answer wins among the paths of a search, and how far the paths agree.

SelectionRule rules as in search-and-learn: naive, weighted and majority, over groups of equivalent answers.
"""

from collections.abc import Iterable
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from search.tree import Node


class SelectionRule(StrEnum):
    """The rule by which one answer is chosen."""

    NAIVE = "naive"
    """The path of the highest score."""
    WEIGHTED = "weighted"
    """The group with the largest sum of path scores, each as often as its path was written."""
    MAJORITY = "majority"
    """The group with the most votes."""


class Candidate(NamedTuple):
    """A path that may answer."""

    node: Node
    score: float | None
    """The path's score in [0, 1]; None where nothing was scored."""
    answer: str | None
    """The answer as written; None where the path has none."""
    group: int | None
    """Equal for equivalent answers; None exactly where there is no answer."""
    votes: Fraction = Fraction(1)
    """What the path weighs beside its score: the more often it was written, the more."""


class AnswerGroup(NamedTuple):
    """Equivalent answers taken together."""

    answer: str
    """As written on the group's best path."""
    size: int
    """Paths."""
    votes: Fraction
    """The sum of theirs; the size where each has one."""
    share: float
    """Of all votes, those for no answer included; in [0, 1]."""
    weight: float
    """Sum of score times votes over the paths; where nothing was scored, the votes."""
    best: Node
    """The path of the highest score, the first on a tie."""
    score: float | None
    """The score of ``best``."""


class AnswerSelection(NamedTuple):
    """The answer of a search."""

    node: Node
    """The end of the answering path."""
    answer: str | None
    """None where no path had an answer: then the path of the highest score stands in."""
    score: float | None
    """The answering path's score; None where nothing was scored."""
    agreement: float
    """The winning group's share of all votes, in [0, 1]; 0.0 without an answer."""
    groups: tuple[AnswerGroup, ...]
    """All groups, the winner first, then by falling votes, ties in order of first appearance."""


def best_groups(groups: Iterable[AnswerGroup], selection: SelectionRule) -> list[AnswerGroup]:
    """Groups of answers by falling rank under the rule by which one of them was chosen; ties stay in their order."""
    return sorted(groups, key=lambda group: -_rank(group, selection))


class Ballot:
    """Candidates as they are counted: one at a time, because there may be thousands."""

    def __init__(self) -> None:
        self._counted: dict[int | None, _Counted] = {}

    def add(self, candidate: Candidate) -> None:
        counted = self._counted.get(candidate.group)
        if counted is None:
            counted = self._counted[candidate.group] = _Counted(candidate)
        counted.add(candidate)

    def selected(self, selection: SelectionRule) -> AnswerSelection:
        """The answer selected among those that were added, whose order decides every tie: the first wins.

        A candidate without an answer joins no group, and answers only when no candidate has one. An unscored candidate
        weighs 1, so that ``weighted`` is then ``majority`` and ``naive`` the first.

        Raises:
            ValueError: there are no candidates.
        """
        if not self._counted:
            raise ValueError("an answer cannot be chosen among no candidates")
        votes = {group: counted.votes for group, counted in self._counted.items()}
        all_votes = float(sum(votes.values(), start=Fraction(0)))
        groups = [
            counted.group(votes[group], all_votes) for group, counted in self._counted.items() if group is not None
        ]
        if not groups:
            best = self._counted[None].best
            return AnswerSelection(best.node, None, best.score, 0.0, ())
        winner = max(groups, key=lambda group: _rank(group, selection))
        rest = sorted((group for group in groups if group is not winner), key=lambda group: -group.votes)
        return AnswerSelection(winner.best, winner.answer, winner.score, winner.share, (winner, *rest))


class _Counted:
    """The candidates of one group."""

    def __init__(self, first: Candidate) -> None:
        self.best = first
        self._size = 0
        self._weight = 0.0
        self._numerators: dict[int, int] = {}
        """Of the votes, by denominators, of which there are few: adding fractions one by one takes ten times as
        long."""

    def add(self, candidate: Candidate) -> None:
        self._size += 1
        above, below = candidate.votes.as_integer_ratio()
        self._numerators[below] = self._numerators.get(below, 0) + above
        self._weight += _score(candidate) * (above / below)
        if _score(candidate) > _score(self.best):
            self.best = candidate

    @property
    def votes(self) -> Fraction:
        return sum((Fraction(above, below) for below, above in self._numerators.items()), start=Fraction(0))

    def group(self, votes: Fraction, all_votes: float) -> AnswerGroup:
        best = self.best
        share = float(votes) / all_votes
        return AnswerGroup(best.answer or "", self._size, votes, share, self._weight, best.node, best.score)


def _score(candidate: Candidate) -> float:
    return 1.0 if candidate.score is None else candidate.score


def _rank(group: AnswerGroup, selection: SelectionRule) -> float | Fraction:
    match selection:
        case SelectionRule.NAIVE:
            return 1.0 if group.score is None else group.score
        case SelectionRule.WEIGHTED:
            return group.weight
        case SelectionRule.MAJORITY:
            return group.votes
