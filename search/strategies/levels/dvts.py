"""Diverse verifier tree search: independent subtrees, each keeping its best step."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from search.caps import Width
from search.strategies.base import Expansion
from search.strategies.levels.level_search import WidthSearch, divides_n
from search.strategies.path_score import best_first
from search.tree import COMPLETE, Node, NodeStatus, SearchTree


class DVTS(WidthSearch):
    """Grows independent subtrees and keeps the best step of each.

    ``n // m`` subtrees of width ``m``, as in search-and-learn (Beeching et al. 2024).
    Each iteration writes ``m`` continuations in every subtree and keeps the best one; a subtree ends when its best one
    is terminal. The last ``m`` continuations of each subtree are the answers, ``n`` in all.

    If siblings of the same text are merged, subtrees that chose the same steps are at the same node, and each still
    writes ``m`` continuations of its own there. If the generator gives some back, each subtree still gets one.

    Subtrees at different nodes do not wait for each other: the steps below a node are decided when all of them are
    written and scored. The tree is that of a search that waits level by level: a subtree goes ahead only if the budget
    has room for all that comes before its steps in that order. With ``lookahead`` it always waits.
    """

    name: Literal["dvts"] = "dvts"
    n: Width = Field(16, description="Answers in the end; a multiple of m.")
    m: Width = Field(4, validate_default=True, description="Width: steps written per subtree.")

    _divides_n = field_validator("m")(divides_n)

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        if self.lookahead and tree.in_flight:
            return []
        regions = self._regions(tree).growing
        width = Counter[int]()
        for node, region in regions.items():
            width[node.depth] += self.m * len(region.subtrees)
        first = min(width, default=0)
        # The most steps that may be requested until the children of a level are.
        room = {depth: sum(width[above] * (depth - above + 1) for above in width if above <= depth) for depth in width}
        room[first] = 0  # in turn
        # As a search that waits level by level requests them.
        order = sorted(regions, key=lambda node: (node.depth, regions[node].rank))
        wanted = [
            Expansion(node, missing, least=max(1, subtrees - len(node.children)), room=room[node.depth])
            for node in order
            if (missing := self.m * (subtrees := len(regions[node].subtrees)) - node.asked) > 0
        ]
        if not self.lookahead:
            return wanted
        level = tree.level(tree.deepest) if tree.deepest else []
        return [each for each in wanted if each.node.depth < tree.deepest] or self.longer(level) or wanted

    def prepare(self, tree: SearchTree) -> None:
        regions = self._regions(tree)
        self._advance(regions, list(regions.growing))

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        regions = self._regions(tree)
        if not self.lookahead:
            self._advance(regions, {node.parent for node in arrived if node.parent is not None})
        # Not before a whole level is decided: if a budget ends the search there, all of its steps are answers.
        decided = min((node.depth for node in regions.growing), default=self.max_depth)
        for step in regions.losers:
            if step.depth <= decided and step.status is NodeStatus.OPEN:
                tree.prune(step)
        regions.losers = [step for step in regions.losers if step.depth > decided]

    def candidates(self, tree: SearchTree) -> list[Node]:
        """The last steps of every subtree, ended or not; ordered by id."""
        regions = self._regions(tree)
        last = list(regions.ended)
        for node, region in regions.growing.items():
            below = self._steps(node, region)
            last += [_alive(below.get(subtree, ())) or _alive(chosen) for subtree, chosen in region.subtrees.items()]
        return sorted(set(chain.from_iterable(last)), key=lambda node: node.id)

    def _regions(self, tree: SearchTree) -> "Regions":
        if DVTS not in tree.strategy_cache:
            regions = Regions({tree.root: Region(dict.fromkeys(range(self.n // self.m), ()))})
            self._advance(regions, [tree.root])
            tree.strategy_cache[DVTS] = regions
        return tree.strategy_cache[DVTS]  # type: ignore[no-any-return]

    def _advance(self, regions: "Regions", nodes: Iterable[Node]) -> None:
        """Decides the steps below those of ``nodes`` whose children have all arrived, and below the chosen ones."""
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            region = regions.growing.get(node)
            if region is not None and self._has_arrived(node, region):
                del regions.growing[node]
                waiting += self._decide(regions, self._steps(node, region))

    def _decide(self, regions: "Regions", steps: dict[int, list[Node]]) -> Iterable[Node]:
        """Has each subtree end or go on. Returns the nodes at which they go on."""
        going_on: dict[Node, Region] = {}
        answers: set[Node] = set()
        ranks: dict[Node, tuple[int, int]] = {}
        for subtree, written in steps.items():
            best = best_first(written, self.aggregation)[0]
            if best.status is NodeStatus.TERMINAL:
                regions.ended.append(_alive(written))
                answers.update(written)
            else:
                for step in written:
                    ranks.setdefault(step, (subtree, len(ranks)))
                going_on.setdefault(best, Region({}, ranks[best])).subtrees[subtree] = written
        regions.losers += [step for step in ranks if step not in going_on and step not in answers]
        regions.growing |= going_on
        return going_on

    def _steps(self, node: Node, region: "Region") -> dict[int, list[Node]]:
        """The distinct steps written below ``node`` for each subtree there, from ``m`` samples each. The subtrees split
        the children in order, as evenly as possible if some were given back."""
        subtrees = len(region.subtrees)
        granted = [index for index in range(self.m * subtrees) if index not in node.given_back]
        written: dict[int, list[Node]] = {}
        for turn, subtree in enumerate(region.subtrees):
            begin, end = (len(granted) * each // subtrees for each in (turn, turn + 1))
            samples = [node.children[index].first for index in granted[begin:end] if index in node.children]
            if steps := [sample for sample in dict.fromkeys(samples) if sample.status in COMPLETE]:
                written[subtree] = steps
        return written

    def _has_arrived(self, node: Node, region: "Region") -> bool:
        """Whether all steps below ``node`` are written and scored, and their lookaheads too."""
        children = node.children.values()
        return (
            node.asked >= self.m * len(region.subtrees)
            and node.samples >= len(children)  # all are written
            and not any(child.status in _AWAITED or child.lookahead_end.status in _AWAITED for child in children)
            and not self.longer(children)
        )


class Region(NamedTuple):
    """What grows below a node: its steps are decided together."""

    subtrees: dict[int, Sequence[Node]]
    """The subtrees at the node, and the steps among which each of them chose it."""
    rank: tuple[int, int] = (0, 0)
    """The first subtree for which the node was written, and its place among the steps there. Within a level a budget is
    spent in this order."""


@dataclass
class Regions:
    """The regions of one tree: they follow from the steps that have arrived."""

    growing: dict[Node, Region]
    """By node; below it the next steps are not decided yet."""
    ended: list[list[Node]] = field(default_factory=list)
    """The last steps of each subtree that has ended."""
    losers: list[Node] = field(default_factory=list)
    """Steps that no subtree has chosen, to be pruned."""


_AWAITED = frozenset({NodeStatus.PENDING, NodeStatus.WRITTEN, NodeStatus.FAILED})


def _alive(steps: Sequence[Node]) -> list[Node]:
    return [node for node in steps if node.status in (NodeStatus.OPEN, NodeStatus.TERMINAL)]
