"""Base of the strategies that write solutions in rounds, of which later ones read the earlier ones."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

from pydantic import Field

from search.caps import Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy
from search.strategies.solution_ends import solution_end
from search.tree import ContextNode, Node, NodeStatus, Reading, SearchTree

MAX_ROUNDS = 32
Made = TypeVar("Made")
Solutions: TypeAlias = Sequence[Node | None]
"""The last nodes of the solutions of a round, in the order in which they were planned; None for one that was given back
or is not written."""


class Grown(NamedTuple):
    """The rounds that a search has written so far."""

    rounds: Sequence[Solutions]
    missing: Sequence[Expansion] = ()
    """What the last round still lacks."""
    complete: bool = True
    """Whether the last round is complete."""

    @property
    def whole(self) -> Sequence[Solutions]:
        """The complete rounds."""
        return self.rounds if self.complete else self.rounds[:-1]

    @property
    def newest(self) -> list[Node]:
        """The solutions of the last complete round, and those of the round after it, if there is one."""
        rounds = self.rounds[-1:] if self.complete else self.rounds[-2:]
        return [node for solutions in rounds for node in solutions if node is not None]


class ReadingRounds(Strategy):
    """Writes a first round of whole solutions below the root, and every further round into contexts.

    What a round reads follows from the rounds before it, and is decided when all of their solutions are complete. So a
    tree says how far its search has come: the rounds are planned again, and its contexts are found among them.
    """

    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION
    needs_rewards: ClassVar[bool] = False

    n: Width = Field(8, description="Number of solutions of the first round.")

    @property
    def starts_contexts(self) -> bool:
        return True

    @property
    def first_round(self) -> int:
        """Number of solutions of the first round."""
        return self.n

    @abstractmethod
    def readings(self, tree: SearchTree, rounds: Sequence[Solutions]) -> Sequence[Reading | None]:
        """What each solution of the next round reads, given all rounds before it; None for a place that stays empty.
        Without any reading the search is finished."""

    def ballot(self, tree: SearchTree, grown: Grown) -> Mapping[Node, int]:
        """The solutions that may answer, with their votes. On a tie, the first one wins. Where none of them came to an
        end of its own, as when a budget or the context cut them off, those of an earlier round vote."""
        earlier = (list(filter(None, solutions)) for solutions in reversed(grown.whole[:-1]))
        ballots = (each for each in (grown.newest, *earlier) if any(map(tree.is_finished, each)))
        return dict(sorted(Counter(next(ballots, grown.newest)).items(), key=lambda votes: votes[0].id))

    def prepare(self, tree: SearchTree) -> None:
        self.grown(tree)

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        return [] if tree.in_flight else self.grown(tree).missing

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        for node in arrived:  # As they come: those of a whole round would hold up the event loop.
            if node.status is NodeStatus.TERMINAL:
                tree.answer_of(node)

    def candidates(self, tree: SearchTree) -> list[Node]:
        return [*self._ballot(tree)]

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        return Fraction(self._ballot(tree).get(node, 0))

    def grown(self, tree: SearchTree) -> Grown:
        """The rounds of a tree."""
        return self._kept(tree, "grown", lambda: self._grown(tree))

    def _ballot(self, tree: SearchTree) -> Mapping[Node, int]:
        return self._kept(tree, "ballot", lambda: self.ballot(tree, self.grown(tree)))

    def _kept(self, tree: SearchTree, name: str, make: Callable[[], Made]) -> Made:
        """What follows from a tree, kept in its cache until something arrives."""
        state = len(tree), tree.in_flight, len(tree.terminals), len(tree.remarks)
        known = tree.strategy_cache.get((ReadingRounds, name))
        if known is None or known[0] != state:
            known = tree.strategy_cache[ReadingRounds, name] = state, make()
        made: Made = known[1]
        return made

    def _readings(self, tree: SearchTree, rounds: Sequence[Solutions]) -> Sequence[Reading | None]:
        """`readings`, kept in the tree's cache: they follow from complete rounds, and from remarks."""
        name = ReadingRounds, len(rounds), len(tree.remarks)
        if name not in tree.strategy_cache:
            tree.strategy_cache[name] = self.readings(tree, rounds)
        readings: Sequence[Reading | None] = tree.strategy_cache[name]
        return readings

    def _grown(self, tree: SearchTree) -> Grown:
        root, contexts = tree.root, [*tree.contexts]
        rounds: list[Solutions] = [_solutions(root)]
        if missing := self.first_round - root.asked:
            return Grown(rounds, [Expansion(root, missing)], complete=False)
        complete = len(rounds[0]) == len(root.children)
        while complete and any(readings := self._readings(tree, rounds)):
            lacking: list[Expansion] = []
            written: dict[Reading, list[Node]] = {}
            for reading, count in Counter(filter(None, readings)).items():  # Equal prompts are one context.
                context = _taken(contexts, reading)
                written[reading] = [] if context is None else _solutions(context)[::-1]
                if context is None:
                    lacking.append(Expansion.reading(reading, count))
                elif context.asked < count:
                    lacking.append(Expansion(context, count - context.asked))
                else:
                    complete &= len(written[reading]) == len(context.children)
            places = (written[reading] if reading else [] for reading in readings)
            rounds.append([place.pop() if place else None for place in places])
            if lacking:
                return Grown(rounds, lacking, complete=False)
        return Grown(rounds, complete=complete)


def _taken(contexts: list[ContextNode], reading: Reading) -> ContextNode | None:
    """Takes the first context of a reading out of ``contexts``, or else the first one of all; None if there is none. A
    context that had no room for all sources has the first ones. Notes are not compared: remarks are not saved."""
    for index, known in enumerate(context.reading for context in contexts):
        if known.template == reading.template and known.sources == reading.sources[: len(known.sources)]:
            return contexts.pop(index)
    return contexts.pop(0) if contexts else None


def _solutions(below: Node) -> list[Node]:
    """The last nodes of the solutions below the root or a context that came to an end, in the order of their
    requests."""
    ends = (solution_end(sample) for _, sample in sorted(below.children.items()))
    return [end for end in ends if end.status is NodeStatus.TERMINAL]
