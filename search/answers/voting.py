"""Voting: selects the answer among paths that may answer, and measures their agreement.

The rules are those of search-and-learn: naive, weighted and majority, over groups of equivalent answers. A path is
whatever the caller knows it by, such as its last node.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

PathT = TypeVar("PathT")
"""What the caller knows a path by."""


class SelectionRule(StrEnum):
    """The rule by which one answer is selected."""

    NAIVE = "naive"
    """The path with the highest score."""
    WEIGHTED = "weighted"
    """The group with the largest sum of scores times votes over its paths, or of their own weights times votes."""
    MAJORITY = "majority"
    """The group with the most votes."""
    MEDOID = "medoid"
    """As ``majority``; where no path has an answer, the text nearest to all others, whatever the scores are."""

    @property
    def counts_votes(self) -> bool:
        """Whether it counts votes, whatever the paths' scores are."""
        return self in (SelectionRule.MAJORITY, SelectionRule.MEDOID)


ANSWER_RULES = (SelectionRule.NAIVE, SelectionRule.WEIGHTED, SelectionRule.MAJORITY)
"""The rules that differ where paths have answers."""


class Candidate(NamedTuple, Generic[PathT]):
    """A path that may answer."""

    node: PathT
    score: float | None
    """The path's score in [0, 1]; None where nothing was scored."""
    answer: str | None
    """The answer as written; None if the path has none."""
    group: int | None
    """Group number, equal for equivalent answers; None exactly if there is no answer."""
    votes: Fraction = Fraction(1)
    """Vote weight of the path, apart from its score: higher if it was written more often."""
    weight: float | None = None
    """Weight of each of its votes under ``weighted``; may be negative. None: its score."""


class AnswerGroup(NamedTuple, Generic[PathT]):
    """Equivalent answers taken together."""

    answer: str
    """The answer as written on the group's best path."""
    size: int
    """Number of paths."""
    votes: Fraction
    """Sum of the paths' votes; equals ``size`` if each path has one vote."""
    share: float
    """Share of all votes, including those of paths without an answer; in [0, 1]."""
    weight: float
    """Sum of score, or weight, times votes over the paths; equals ``votes`` if nothing was scored."""
    best: PathT
    """The path with the highest score, the first on a tie."""
    score: float | None
    """The score of ``best``."""


class AnswerSelection(NamedTuple, Generic[PathT]):
    """The answer of a search."""

    node: PathT
    """The answering path."""
    answer: str | None
    """None if no path had an answer; then ``node`` is the path with the highest score."""
    score: float | None
    """The answering path's score; None if nothing was scored."""
    agreement: float
    """The winning group's share of all votes, in [0, 1]; 0.0 without an answer."""
    groups: tuple[AnswerGroup[PathT], ...]
    """All groups, the winner first, then by falling votes, ties in order of first appearance."""
    unread: int = 0
    """Number of different answers that were compared as text, since reading them took too long."""
    text_groups: int = 0
    """Number of groups into which whole texts fell by their meaning, since no path had an answer; 0 where they were not
    compared. ``agreement`` is then the share of the answering text's group, and ``groups`` is empty."""


def best_groups(groups: Iterable[AnswerGroup[PathT]], selection: SelectionRule) -> list[AnswerGroup[PathT]]:
    """Groups of answers by falling rank under the selection rule; ties stay in their order."""
    return sorted(groups, key=lambda group: -_rank(group, selection))


def decisive_shares(groups: Sequence[AnswerGroup[PathT]], selection: SelectionRule) -> list[float]:
    """Returns what decided for each of all groups, in [0, 1]: its part of all weights under ``weighted``, of all votes
    under ``majority`` and ``medoid``, and the score of its best path under ``naive``. The winner has the largest. A
    group with a negative weight has no part."""
    if selection.counts_votes:
        return [group.share for group in groups]
    ranks = [max(0.0, float(_rank(group, selection))) for group in groups]
    whole = sum(ranks) if selection is SelectionRule.WEIGHTED else 1.0
    return [rank / whole if whole else 0.0 for rank in ranks]


class Ballot(Generic[PathT]):
    """Counts candidates, one at a time: there may be thousands, and other tasks need turns on the event loop."""

    def __init__(self) -> None:
        self._counted: dict[int | None, _Counted[PathT]] = {}

    def add(self, candidate: Candidate[PathT]) -> None:
        counted = self._counted.get(candidate.group)
        if counted is None:
            counted = self._counted[candidate.group] = _Counted(candidate)
        counted.add(candidate)

    def selected(self, selection: SelectionRule) -> AnswerSelection[PathT]:
        """The answer selected among the added candidates. On a tie, the first one added wins.

        A candidate without an answer joins no group, and is selected only if no candidate has an answer. An unscored
        candidate has score 1, so without scores ``weighted`` equals ``majority`` and ``naive`` selects the first.

        Raises:
            ValueError: there are no candidates.
        """
        if not self._counted:
            raise ValueError("there are no candidates to select an answer from")
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


class _Counted(Generic[PathT]):
    """The candidates of one group."""

    def __init__(self, first: Candidate[PathT]) -> None:
        self.best = first
        self._size = 0
        self._weight = 0.0
        self._numerators: dict[int, int] = {}
        """Sum of the votes' numerators for each denominator. There are few denominators, and adding fractions one by
        one would take ten times as long."""

    def add(self, candidate: Candidate[PathT]) -> None:
        self._size += 1
        above, below = candidate.votes.as_integer_ratio()
        self._numerators[below] = self._numerators.get(below, 0) + above
        weight = _score(candidate) if candidate.weight is None else candidate.weight
        self._weight += weight * (above / below)
        if _score(candidate) > _score(self.best):
            self.best = candidate

    @property
    def votes(self) -> Fraction:
        return sum((Fraction(above, below) for below, above in self._numerators.items()), start=Fraction(0))

    def group(self, votes: Fraction, all_votes: float) -> AnswerGroup[PathT]:
        best = self.best
        share = float(votes) / all_votes
        return AnswerGroup(best.answer or "", self._size, votes, share, self._weight, best.node, best.score)


def _score(candidate: Candidate[PathT]) -> float:
    return 1.0 if candidate.score is None else candidate.score


def _rank(group: AnswerGroup[PathT], selection: SelectionRule) -> float | Fraction:
    match selection:
        case SelectionRule.NAIVE:
            return 1.0 if group.score is None else group.score
        case SelectionRule.WEIGHTED:
            return group.weight
        case SelectionRule.MAJORITY | SelectionRule.MEDOID:
            return group.votes
