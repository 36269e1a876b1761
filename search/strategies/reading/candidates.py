"""The different answers of a population, and the windows in which a model reads them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from search.answers.meaning import normalized
from search.tree import Node, SearchTree


class Candidate(NamedTuple):
    """A solution that stands for all with its answer."""

    node: Node
    """The last node of the first of them."""
    count: int  # type: ignore[assignment]  # over tuple.count
    """Their number."""


def answers_of(tree: SearchTree, solutions: Sequence[Node]) -> list[str | None]:
    """The answers of ``solutions``, which are last nodes of paths, in a spelling by which equal ones are equal: the
    canonical one. Where no solution has an answer, its text stands for it, apart from white space and case."""
    answers = [tree.spelling_of(node) for node in solutions]
    if any(answer is not None for answer in answers):
        return answers
    return [normalized(tree.content_of(node)) for node in solutions]


def candidates_of(tree: SearchTree, solutions: Sequence[Node]) -> list[Candidate]:
    """One candidate for each different answer of ``solutions``: the most frequent answer first, ties in the order of
    their first solutions.

    Where some solutions have an answer, the others are no candidates. Solutions that came to no end of their own are
    none either, unless there are no others.
    """
    finished = [node for node in solutions if tree.is_finished(node)] or solutions
    counts: Counter[str] = Counter()
    first: dict[str, Node] = {}
    for node, answer in zip(finished, answers_of(tree, finished), strict=True):
        if answer is not None:
            counts[answer] += 1
            first.setdefault(answer, node)
    return [Candidate(first[answer], count) for answer, count in counts.most_common()]


def windows(candidates: Sequence[Candidate], size: int) -> list[list[Candidate]]:
    """Candidates dealt in turn over as few windows of at most ``size`` as hold them, so that the most frequent answers
    meet late."""
    number = -(-len(candidates) // size)
    return [list(candidates[index::number]) for index in range(number)]


def orders(window: Sequence[Candidate], readers: int, rng: Random) -> list[tuple[Candidate, ...]]:
    """The order in which each reader is shown a window: a drawn one, turned by one place for each further reader, since
    models prefer places. So candidates stand in each place equally often, if there are enough readers."""
    drawn = rng.sample(window, len(window))
    turns = (number % len(window) for number in range(readers))
    return [(*drawn[turn:], *drawn[:turn]) for turn in turns]


def ranked(window: Iterable[Candidate], chosen: Mapping[Node, int]) -> list[Candidate]:
    """A window by the number of readers that chose each candidate, then by the frequency of its answer. So the most
    frequent answer wins where no reader chose any."""
    return sorted(window, key=lambda candidate: (-chosen.get(candidate.node, 0), -candidate.count))
