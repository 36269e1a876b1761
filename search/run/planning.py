"""Turns a strategy's expansions into batches of branches for the generator, within all limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
    """Limits of every path of one search."""

    prompt: tuple[int, ...]
    context_tokens: int
    """The generator's context length: prompt, path and the step being written."""
    max_path_tokens: int
    max_depth: int

    def tokens(self, node: Node) -> int:
        """Tokens that may still be written below ``node``."""
        return min(self.max_path_tokens, self.context_tokens - len(self.prompt)) - node.path_tokens

    @property
    def longest(self) -> int:
        """Most tokens of prompt and path together."""
        return min(self.max_path_tokens + len(self.prompt), self.context_tokens)

    def steps(self, node: Node) -> int:
        """Steps that may still be written below ``node``."""
        return self.max_depth - node.depth


@dataclass
class Batch:
    """The branches of one generator call that have not arrived. Each is a pending node of the tree, whose ``request``
    says what was requested and reserved in the budget."""

    stop_condition: StopCondition
    lookahead: bool = False
    """Whether its children are lookaheads, which are written greedily."""
    pending: dict[NodeId, Node] = field(default_factory=dict)
    """In the order of the requests."""
    optional: set[NodeId] = field(default_factory=set)
    """Children that the replica may give back, in the first group it streams."""

    async def items(self, prompt: tuple[int, ...], seed: int) -> tuple[ExpandItem, ...]:
        """The items of an `ExpandRequest` for all pending branches."""
        groups: list[list[Node]] = []
        for node in self.pending.values():
            last = groups[-1][-1] if groups else None
            # In an item, required branches come before optional ones.
            fits = last is not None and (node.id in self.optional or last.id not in self.optional)
            if last is None or last.parent is not node.parent or not fits:
                groups.append([])
            groups[-1].append(node)
        items, turns = [], Turns()
        for nodes in groups:
            items.append(self._item(nodes, prompt, seed))
            await turns.pass_on()
        return tuple(items)

    def _item(self, nodes: Sequence[Node], prompt: tuple[int, ...], seed: int) -> ExpandItem:
        parent = nodes[0].parent
        assert parent is not None
        branches = tuple(
            Branch(node.id[-1], branch_seed(seed, parent.id, node.id[-1]), reserved(node).tokens) for node in nodes
        )
        least = sum(node.id not in self.optional for node in nodes)
        return ExpandItem(parent.id, (*prompt, *parent.token_ids), branches, least)


def reserved(node: Node) -> Cost:
    """The budget reservation of a pending node."""
    assert node.request is not None
    return Cost(node.request.tokens, node.request.nodes)


class Planner:
    """Turns expansions into batches and enters their children into the tree."""

    def __init__(self, tree: SearchTree, settings: SearchSettings, limits: PathLimits, meter: BudgetMeter) -> None:
        self._tree = tree
        self._settings = settings
        self._limits = limits
        self._meter = meter

    async def plan(self, expansions: Sequence[Expansion]) -> list[Batch]:
        """Batches for as many branches of ``expansions`` as the budget grants, in order. One batch per stop condition
        and kind (lookahead or not), so normally one.

        Branches with a reservation are in the tree afterwards, as pending nodes; the others are not.
        """
        granted = iter(self._meter.reserve([cost for expansion in expansions for cost in self._costs(expansion)]))
        batches: dict[tuple[StopCondition, bool], Batch] = {}
        settled = False
        # With branches in flight, arrivals between two turns could change the nodes of later expansions: no turns then.
        turns = None if self._tree.in_flight else Turns()
        for expansion in expansions:
            costs = [cost for _, cost in zip(range(expansion.count), granted, strict=False)]
            if costs:
                if not settled:
                    self._tree.settle()
                    settled = True
                kind = self._stop_condition(expansion), expansion.lookahead
                await self._enter(batches.setdefault(kind, Batch(*kind)), expansion, costs, turns)
        return [batch for batch in batches.values() if batch.pending]

    def resume(self) -> tuple[list[Batch], Cost]:
        """Resumes a tree that has grown already: charges the budget for its steps and reserves for its pending nodes.

        Returns the batches to request again, and the cost charged. The caller scores written, unscored steps."""
        steps = [step for node in self._tree.nodes if (step := node.written_step)]
        written = Cost(sum(len(step.token_ids) for step in steps), len(steps))
        self._meter.charge(written)
        batches: dict[tuple[StopCondition, bool], Batch] = {}
        take_up(self._tree)
        pending = [node for node in self._tree.live if node.status is NodeStatus.PENDING]
        by_parent: dict[Node, list[Node]] = {}
        for node in pending:
            if node.parent is not None and node.request is not None:
                by_parent.setdefault(node.parent, []).append(node)
        for node in chain.from_iterable(by_parent.values()):
            assert node.request is not None
            self._meter.reserve_again(reserved(node))
            kind = StopCondition.SOLUTION if node.request.whole else StopCondition.STEP, node.is_lookahead
            # A replica may have granted these branches already, so none of them is optional.
            batches.setdefault(kind, Batch(*kind)).pending[node.id] = node
        return list(batches.values()), written

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
        nodes: list[Node] = []
        for cost in costs:
            # Every node below a lookahead is one too, so its children take ordinary indices.
            [node] = self._tree.request(parent, 1, batch.lookahead and not parent.is_lookahead)
            node.request = ExpansionRequest(batch.stop_condition is StopCondition.SOLUTION, cost.tokens, cost.nodes)
            nodes.append(node)
            if turns is not None:
                await turns.pass_on()
        if self._tree.replays is None:
            least = len(nodes) if batch.lookahead else max(1, expansion.least)
            batch.optional.update(node.id for node in nodes[least:])
        else:
            given_back = [node for node in nodes if node.id in self._tree.replays]
            nodes = [node for node in nodes if node.id not in self._tree.replays]
            for node in given_back:
                self._meter.settle(reserved(node), NOTHING)
            self._tree.give_back(given_back)
        batch.pending.update((node.id, node) for node in nodes)
