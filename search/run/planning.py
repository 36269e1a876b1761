"""From a strategy's wish to grow to branches that a generator can write, within all limits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from search.budget import BudgetMeter, Cost
from search.ports import Branch, ExpandItem, StopCondition, branch_seed
from search.run.recovery import take_up
from search.settings import SearchSettings
from search.strategies.base import Expansion
from search.tools.turns import Turns
from search.tree import ExpansionRequest, Node, NodeId, NodeStatus, SearchTree

NOTHING = Cost(0, 0)


class PathLimits(NamedTuple):
    """The bounds of every path of one search."""

    prompt: tuple[int, ...]
    context_tokens: int
    """The generator's context: prompt, path and the step being written."""
    max_path_tokens: int
    max_depth: int

    def tokens(self, node: Node) -> int:
        """Tokens that may still be written below ``node``."""
        return min(self.max_path_tokens, self.context_tokens - len(self.prompt)) - node.path_tokens

    def steps(self, node: Node) -> int:
        """Steps that may still be written below ``node``."""
        return self.max_depth - node.depth


@dataclass
class Batch:
    """Children that go to the generator in one call: the tree has them as pending."""

    stop_condition: StopCondition
    lookahead: bool = False
    """Whether its children are lookaheads, which are written greedily."""
    expansions: list[ExpandItem] = field(default_factory=list)
    reservations: dict[NodeId, Cost] = field(default_factory=dict)
    """What was reserved for each child that has not arrived yet."""
    optional: set[NodeId] = field(default_factory=set)
    """Children that the replica may give back."""


class Planner:
    """Turns expansions into batches and enters their children into the tree."""

    def __init__(
        self, tree: SearchTree, settings: SearchSettings, seed: int, limits: PathLimits, meter: BudgetMeter
    ) -> None:
        self._tree = tree
        self._settings = settings
        self._seed = seed
        self._limits = limits
        self._meter = meter

    async def plan(self, expansions: Sequence[Expansion]) -> list[Batch]:
        """As much of ``expansions`` as the budget grants, in order; one batch per stop condition and
        kind, so normally one.

        The children for which there was budget are in the tree afterwards, pending; the others are not.
        """
        reserved = iter(self._meter.reserve([cost for expansion in expansions for cost in self._costs(expansion)]))
        batches: dict[tuple[StopCondition, bool], Batch] = {}
        settled = False
        # While something is in flight, what arrived between two turns could change what the others are about.
        turns = None if self._tree.in_flight else Turns()
        for expansion in expansions:
            costs = [cost for _, cost in zip(range(expansion.count), reserved, strict=False)]
            if costs:
                if not settled:
                    self._tree.settle()
                    settled = True
                kind = self._stop_condition(expansion), expansion.lookahead
                await self._enter(batches.setdefault(kind, Batch(*kind)), expansion, costs, turns)
        return [batch for batch in batches.values() if batch.reservations]

    def resume(self) -> list[Batch]:
        """Takes over a tree that has grown already: charges what it cost and takes up what was under way. Gives all
        that is to be asked for again; what is written and not scored is the caller's."""
        written = [node.step for node in self._tree.nodes if node.step is not None]
        self._meter.charge(Cost(sum(len(step.token_ids) for step in written), len(written)))
        batches: dict[tuple[StopCondition, bool], Batch] = {}
        take_up(self._tree)
        pending = [node for node in self._tree.live if node.status is NodeStatus.PENDING]
        wanted: dict[tuple[Node, bool, bool], dict[Node, Cost]] = {}
        for node in pending:
            if node.parent is not None and node.request is not None:
                cost = Cost(node.request.tokens, node.request.nodes)
                self._meter.reserve_again(cost)
                wanted.setdefault((node.parent, node.request.whole, node.is_lookahead), {})[node] = cost
        for (parent, whole, lookahead), costs in wanted.items():
            kind = StopCondition.SOLUTION if whole else StopCondition.STEP, lookahead
            # What was under way was granted, as far as anybody knew.
            self._launch(batches.setdefault(kind, Batch(*kind)), parent, costs, len(costs))
        return list(batches.values())

    def _costs(self, expansion: Expansion) -> Iterator[Cost]:
        tokens, nodes = self._limits.tokens(expansion.node), 1
        if self._stop_condition(expansion) is StopCondition.SOLUTION:
            nodes = self._limits.steps(expansion.node)
        else:
            tokens = min(tokens, self._settings.max_step_tokens)
        return (Cost(tokens, nodes) for _ in range(expansion.count))

    def _stop_condition(self, expansion: Expansion) -> StopCondition:
        return expansion.stop_condition or self._settings.strategy.stop_condition

    async def _enter(self, batch: Batch, expansion: Expansion, costs: Sequence[Cost], turns: Turns | None) -> None:
        parent = expansion.node
        nodes: dict[Node, Cost] = {}
        for cost in costs:
            # Below a lookahead everything is one: its children need no indices of their own.
            [node] = self._tree.request(parent, 1, batch.lookahead and not parent.is_lookahead)
            node.request = ExpansionRequest(batch.stop_condition is StopCondition.SOLUTION, cost.tokens, cost.nodes)
            nodes[node] = cost
            if turns is not None:
                await turns.pass_on()
        if self._tree.replays is None:
            least = len(nodes) if batch.lookahead else min(max(1, expansion.least), len(nodes))
            self._launch(batch, parent, nodes, least)
            return
        given_back = [node for node in nodes if node.id in self._tree.replays]
        for node in given_back:
            self._meter.settle(nodes.pop(node), NOTHING)
        self._tree.give_back(given_back)
        if nodes:
            self._launch(batch, parent, nodes, len(nodes))

    def _launch(self, batch: Batch, parent: Node, costs: Mapping[Node, Cost], least: int) -> None:
        """Adds the branches of pending children of ``parent`` to a batch, ``least`` of which must be written."""
        branches: list[Branch] = []
        for node, cost in costs.items():
            index = node.id[-1]
            branches.append(Branch(index, branch_seed(self._seed, parent.id, index), cost.tokens))
            batch.reservations[node.id] = cost
            if len(branches) > least:
                batch.optional.add(node.id)
        prefix = (*self._limits.prompt, *parent.token_ids)
        batch.expansions.append(ExpandItem(parent.id, prefix, tuple(branches), least))
