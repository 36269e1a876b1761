"""GenSelect: several solutions, of which the model chooses by reading them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal

from pydantic import Field

from search.answers.voting import SelectionRule
from search.caps import Uncapped, Width
from search.strategies.base import ReaderVote
from search.strategies.notes import criteria_note
from search.strategies.reading.candidates import Candidate, candidates_of, orders, ranked, windows
from search.strategies.reading.rounds import Grown, ReadingRounds, Solutions
from search.tree import Node, Reading, SearchTree

MAX_WINDOW = 32
MAX_CRITERIA_CHARS = 4096


class Select(ReadingRounds):
    """Solutions, of which the model chooses by reading them together.

    Source: GenSelect (Toshniwal et al. 2025, arXiv 2507.17797): windows of 8 solutions, and a knockout over the winners
    of several windows.

    The vote comes first, and is taken as it is unless it is contested. Different answers are read, each once. A window
    is read several times, each time in another order. A reader whose choice is not readable abstains.
    """

    name: Literal["select"] = "select"
    contested: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="The solutions are read if the share of the leading answer is below this. Otherwise it answers.",
    )
    readers: Width = Field(4, description="How often each window is read; each reading is one vote.")
    window: Uncapped = Field(8, ge=2, le=MAX_WINDOW, description="Most solutions that a reader is shown.")
    criteria: str | None = Field(
        None,
        max_length=MAX_CRITERIA_CHARS,
        description="By what the readers judge the solutions. Unset: as the template says.",
    )
    selection: Literal[SelectionRule.MAJORITY] = Field(
        SelectionRule.MAJORITY, description="Only a majority vote, of the readers if there are any: nothing is scored."
    )

    @property
    def most_shown(self) -> int:
        return min(self.window, self.n)

    def readings(self, tree: SearchTree, rounds: Sequence[Solutions]) -> Sequence[Reading]:
        shown, chosen = self._read(tree, rounds)
        if len(rounds) == 1:
            solutions = len(rounds[0])
            remaining = shown if shown and shown[0].count < self.contested * solutions else []
        else:
            remaining = self._winners(shown, chosen)
        rng = Random(f"select:{tree.seed}:{len(rounds)}")
        return [
            self._reading(order)
            for window in windows(remaining, self.window)
            if len(remaining) > 1 and len(window) > 1
            for order in orders(window, self.readers, rng)
        ]

    def ballot(self, tree: SearchTree, grown: Grown) -> Mapping[Node, int]:
        """All solutions; where they were read, the last candidates, with the readers' votes. Candidates that lost
        before have none."""
        if len(grown.rounds) == 1:
            return super().ballot(tree, grown)
        shown, chosen = self._read(tree, grown.rounds)
        votes = chosen or {candidate.node: candidate.count for candidate in shown}
        last = [candidate.node for candidate in ranked(shown, chosen)]
        others = [candidate.node for candidate in self._read(tree, grown.rounds[:1])[0]]
        # Of texts without an answer the one nearest to all others wins: only what readers chose may be among them.
        listed = (node for node in dict.fromkeys((*last, *others)) if node in votes or tree.answer_of(node) is not None)
        return {node: votes.get(node, 0) for node in listed}

    def reader_votes(self, tree: SearchTree) -> list[ReaderVote]:
        return [
            ReaderVote(reply.id, None if chosen is None else chosen.id, tree.content_of(reply))
            for replies in self.grown(tree).rounds[1:]
            for reply in replies
            if reply is not None
            for chosen in [_chosen(tree, reply)]
        ]

    def _read(self, tree: SearchTree, rounds: Sequence[Solutions]) -> tuple[Sequence[Candidate], Counter[Node]]:
        """The candidates that the readers of the last of ``rounds`` were shown, and how many chose each of them.
        Without readers, all candidates."""
        shown: Sequence[Candidate] = candidates_of(tree, [node for node in rounds[0] if node is not None])
        chosen: Counter[Node] = Counter()
        for number, replies in enumerate(rounds[1:]):
            shown = self._winners(shown, chosen) if number else shown
            choices = (_chosen(tree, reply) for reply in replies if reply is not None)
            chosen = Counter(choice for choice in choices if choice is not None)
        return shown, chosen

    def _winners(self, shown: Sequence[Candidate], chosen: Counter[Node]) -> Sequence[Candidate]:
        return [ranked(window, chosen)[0] for window in windows(shown, self.window)]

    def _reading(self, order: Sequence[Candidate]) -> Reading:
        counts = tuple(candidate.count for candidate in order)
        return Reading(
            tuple(candidate.node for candidate in order), "select", criteria_note(self.criteria or ""), counts
        )


def _chosen(tree: SearchTree, reply: Node) -> Node | None:
    """The solution that a reader chose; None if it abstained."""
    sources = () if reply.context is None else reply.context.reading.sources
    index = tree.choice_of(tree.content_of(reply), len(sources))
    return None if index is None else sources[index]
