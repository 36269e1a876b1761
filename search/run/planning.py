"""From a strategy's wish to grow to branches that a generator can write, within all limits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from search.budget import BudgetMeter, Cost
from search.ports import Branch, Expansion, Extent, branch_seed
from search.run.recovery import take_up
from search.settings import SearchSettings
from search.strategies.base import Growth
from search.tree import Node, NodeId, NodeStatus, Order, SearchTree


class Room(NamedTuple):
    """The bounds of every path of one search."""

    prompt: tuple[int, ...]
    context_tokens: int
    """The generator's context: prompt, path and the step being written."""
    max_path_tokens: int
    max_depth: int

    def tokens(self, node: Node) -> int:
        """Tokens that may still be written below ``node``."""
        written = len(node.token_ids)
        return min(self.max_path_tokens, self.context_tokens - len(self.prompt)) - written

    def steps(self, node: Node) -> int:
        """Steps that may still be written below ``node``."""
        return self.max_depth - node.depth


@dataclass
class Batch:
    """Children that go to the generator in one call: the tree has them as pending."""

    extent: Extent
    probe: bool = False
    """Whether its children are probes, which are written greedily."""
    expansions: list[Expansion] = field(default_factory=list)
    grants: dict[NodeId, Cost] = field(default_factory=dict)
    """What was reserved for each child that has not arrived yet."""


class Planner:
    """Turns growths into batches and enters their children into the tree."""

    def __init__(self, tree: SearchTree, settings: SearchSettings, seed: int, room: Room, meter: BudgetMeter) -> None:
        self._tree = tree
        self._settings = settings
        self._seed = seed
        self._room = room
        self._meter = meter

    def plan(self, growths: Sequence[Growth]) -> list[Batch]:
        """As much of ``growths`` as the budget grants, in order; one batch per extent and
        kind, so normally one.

        The children granted are in the tree afterwards, pending; the others are not.
        """
        granted = iter(self._meter.reserve([cost for growth in growths for cost in self._costs(growth)]))
        batches: dict[tuple[Extent, bool], Batch] = {}
        before = len(self._tree)
        for growth in growths:
            costs = [cost for _, cost in zip(range(growth.count), granted, strict=False)]
            if costs:
                kind = self._extent(growth), growth.probe
                self._enter(batches.setdefault(kind, Batch(*kind)), growth.node, costs)
        if batches:
            self._tree.settled = before
        return list(batches.values())

    def resume(self) -> list[Batch]:
        """Takes over a tree that has grown already: charges what it cost and takes up what was under way. Gives all
        that is to be asked for again; what is written and not scored is the caller's."""
        written = [node.step for node in self._tree.nodes if node.step is not None]
        self._meter.charge(Cost(sum(len(step.token_ids) for step in written), len(written)))
        batches: dict[tuple[Extent, bool], Batch] = {}
        take_up(self._tree)
        pending = [node for node in self._tree.nodes if node.status is NodeStatus.PENDING]
        wanted: dict[tuple[Node, bool, bool], dict[Node, Cost]] = {}
        for node in pending:
            if node.parent is not None and node.order is not None:
                cost = Cost(node.order.tokens, node.order.nodes)
                self._meter.reserve_again(cost)
                wanted.setdefault((node.parent, node.order.whole, node.is_probe), {})[node] = cost
        for (parent, whole, probe), costs in wanted.items():
            kind = Extent.SOLUTION if whole else Extent.STEP, probe
            self._launch(batches.setdefault(kind, Batch(*kind)), parent, costs)
        return list(batches.values())

    def _costs(self, growth: Growth) -> Iterator[Cost]:
        tokens, nodes = self._room.tokens(growth.node), 1
        if self._extent(growth) is Extent.SOLUTION:
            nodes = self._room.steps(growth.node)
        else:
            tokens = min(tokens, self._settings.max_step_tokens)
        return (Cost(tokens, nodes) for _ in range(growth.count))

    def _extent(self, growth: Growth) -> Extent:
        return growth.extent or self._settings.strategy.extent

    def _enter(self, batch: Batch, parent: Node, costs: Sequence[Cost]) -> None:
        # Below a probe everything is one: its children need no indices of their own.
        nodes = self._tree.request(parent, len(costs), batch.probe and not parent.is_probe)
        for node, cost in zip(nodes, costs, strict=True):
            node.order = Order(batch.extent is Extent.SOLUTION, cost.tokens, cost.nodes)
        self._launch(batch, parent, dict(zip(nodes, costs, strict=True)))

    def _launch(self, batch: Batch, parent: Node, costs: Mapping[Node, Cost]) -> None:
        """Adds the branches of pending children of ``parent`` to a batch."""
        branches: list[Branch] = []
        for node, cost in costs.items():
            index = node.id[-1]
            branches.append(Branch(index, branch_seed(self._seed, parent.id, index), cost.tokens))
            batch.grants[node.id] = cost
        prefix = (*self._room.prompt, *parent.token_ids)
        batch.expansions.append(Expansion(parent.id, prefix, tuple(branches)))
