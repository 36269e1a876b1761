"""Turns a strategy's expansions into the branches of generator calls, within all limits."""

from collections.abc import Sequence
from itertools import chain

from search.budget import NOTHING, BudgetMeter, Cost
from search.errors import BudgetTooSmall
from search.ports import Branch, ExpandItem, StopCondition, branch_seed
from search.run.answer_selection import best_leaf
from search.run.contexts import Composer
from search.run.path_limits import PathLimits, PathNeeds
from search.run.recovery import take_up
from search.settings import SearchSettings
from search.strategies.base import Expansion
from search.tools.turns import Turns
from search.tree import ContextNode, ExpansionRequest, Node, NodeStatus, SearchTree

Granted = list[tuple[Expansion, list[Cost]]]
"""Expansions with a reservation for each of their branches that the budget granted."""


Branches = list[Node]
"""The branches of one generator call, in the order of their requests: pending nodes of the tree, whose ``request`` says
what was requested and reserved in the budget. They are alike in ``request.whole`` and in ``is_lookahead``."""


def requested(node: Node) -> ExpansionRequest:
    """The generator request of a branch."""
    assert node.request is not None
    return node.request


def reserved(node: Node) -> Cost:
    """The budget reservation of a pending node."""
    request = requested(node)
    return Cost(request.tokens, request.nodes)


async def expand_items(branches: Branches, limits: PathLimits, seed: int, tool: bool = False) -> tuple[ExpandItem, ...]:
    """The items of an `ExpandRequest`. In an item, required branches come before optional ones. ``tool``: whether
    programs are run in them."""
    groups: list[Branches] = []
    for node in branches:
        last = groups[-1][-1] if groups else None
        fits = last is not None and (requested(node).optional or not requested(last).optional)
        if last is None or last.parent is not node.parent or not fits:
            groups.append([])
        groups[-1].append(node)
    items, turns = [], Turns()
    for nodes in groups:
        items.append(_item(nodes, limits, seed, tool))
        await turns.pass_on()
    return tuple(items)


def _item(nodes: Branches, limits: PathLimits, seed: int, tool: bool) -> ExpandItem:
    parent = nodes[0].parent
    assert parent is not None
    branches = tuple(
        Branch(node.id[-1], branch_seed(seed, parent.id, node.id[-1]), requested(node).tokens) for node in nodes
    )
    least = sum(not requested(node).optional for node in nodes)
    prompt = limits.prompt_of(parent)
    if prompt.messages:
        item = ExpandItem(parent.id, (), branches, least, messages=prompt.messages, text=parent.text)
    else:
        item = ExpandItem(parent.id, (*prompt.token_ids, *parent.token_ids), branches, least)
    if not tool:
        return item
    return item._replace(solution=limits.prompt_tokens(parent) + parent.thought_tokens, room=limits.tokens(parent))


class Planner:
    """Turns expansions into the branches of generator calls, and enters them into the tree.

    Until the strategy has a finished path to answer with, it keeps what one path still needs of the budget. When the
    rest is too small for another step, it finishes the best path with what it kept, by a lookahead to the end of the
    solution, which no strategy takes for a path of its own.
    """

    def __init__(
        self,
        tree: SearchTree,
        settings: SearchSettings,
        limits: PathLimits,
        meter: BudgetMeter,
        hooked: bool = False,
        composer: Composer | None = None,
    ) -> None:
        """
        Args:
            hooked: whether a step hook sees every step, so that a path is finished step by step.
            composer: of the prompts of contexts; None: no expansion reads any node.
        """
        self._composer = composer
        self._finish = StopCondition.STEP if hooked else StopCondition.SOLUTION
        self._tree = tree
        self._settings = settings
        self._limits = limits
        self._needs = PathNeeds(tree, limits, settings.max_step_tokens)
        self._meter = meter

    async def plan(self, expansions: Sequence[Expansion]) -> list[Branches]:
        """The calls for as many branches of ``expansions`` as the budget grants, in order, or for one branch that
        finishes a path. One call per stop condition and kind (lookahead or not), so normally one.

        Branches with a reservation are in the tree afterwards, as pending nodes, and so are their contexts; the others
        are not.
        """
        if self._composer is not None:
            expansions = await self._composed(expansions)
        # With branches in flight, arrivals between two turns could change the nodes of later expansions: no turns then.
        turns = None if self._tree.in_flight else Turns()
        granted = self._granted(expansions)
        missing = sum(each.count for each in expansions) - sum(len(costs) for _, costs in granted)
        if missing and not self._tree.in_flight:
            granted = await self._with_little_left(expansions, granted)
        if granted:
            self._tree.settle()
        calls: dict[tuple[StopCondition, bool, int], Branches] = {}
        for expansion, costs in granted:
            kind = self._stop_condition(expansion), expansion.lookahead, self._thinking_room(expansion.node)
            calls.setdefault(kind, []).extend(await self._entered(expansion, costs, turns))
        return [branches for branches in calls.values() if branches]

    def resume(self) -> tuple[list[Branches], Cost]:
        """Resumes a tree that has grown already: charges the budget for its steps and reserves for its pending nodes.

        Returns the calls to make again, and the cost charged. The caller scores written, unscored steps."""
        steps = [step for node in self._tree.nodes if (step := node.written_step)]
        written = Cost(sum(step.written_tokens for step in steps), len(steps))
        self._meter.charge(written)
        self._meter.read(sum(context.prompt_tokens for context in self._tree.contexts))
        calls: dict[tuple[bool, bool, int], Branches] = {}
        take_up(self._tree)
        pending = [node for node in self._tree.live if node.status is NodeStatus.PENDING]
        by_parent: dict[Node, list[Node]] = {}
        for node in pending:
            if node.parent is not None and node.request is not None:
                by_parent.setdefault(node.parent, []).append(node)
        for node in chain.from_iterable(by_parent.values()):
            # A replica may have granted these branches already, so none of them is optional.
            node.request = requested(node)._replace(optional=False)
            self._meter.reserve_again(reserved(node))
            kind = node.request.whole, node.is_lookahead, self._thinking_room(node)
            calls.setdefault(kind, []).append(node)
        return list(calls.values()), written

    def check_fits(self, expansions: Sequence[Expansion], total_tokens: int) -> None:
        """Checks that ``total_tokens`` suffice for the prompt and all branches of the first round.

        Raises:
            BudgetTooSmall: they might not.
        """
        for expansion in expansions:
            costs, (kept, _) = self._costs(expansion), self._kept(expansion)
            prompt, tokens = self._limits.prompt_size, costs[0].tokens
            if prompt + len(costs) * tokens + kept.tokens > total_tokens:
                raise BudgetTooSmall(total_tokens, prompt, len(costs), tokens, kept.tokens)

    def _granted(self, expansions: Sequence[Expansion], keep: bool = True) -> Granted:
        """Reserves for as many branches as the budget allows; if ``keep``, beside what their paths need afterwards. A
        whole solution needs nothing more."""
        granted: Granted = []
        for expansion in expansions:
            kept, least = self._kept(expansion) if keep else (NOTHING, 1)
            costs = self._reserve(expansion, kept, least)
            if costs:
                granted.append((expansion, costs))
            if len(costs) < expansion.count:
                break
        return granted

    def _kept(self, expansion: Expansion) -> tuple[Cost, int]:
        """What is kept to finish one of the paths below the expansion, and the tokens of its next step."""
        if self._stop_condition(expansion) is not StopCondition.STEP:
            return NOTHING, 1
        least = self._needs.step_tokens(expansion.node)
        rest = max(0, self._needs.tokens(expansion.node) - least)
        return Cost(rest, 0 if self._tree.longest_path else 1), least

    async def _with_little_left(self, expansions: Sequence[Expansion], granted: Granted) -> Granted:
        """What is granted in place of ``granted`` when the budget does not suffice for all ``expansions``."""
        strategy = self._settings.strategy
        if any(map(self._tree.is_finished, strategy.candidates(self._tree))):
            for expansion, costs in granted:
                self._meter.read(-_new_prompt(expansion))
                for cost in costs:
                    self._meter.settle(cost, NOTHING)
            return self._granted(expansions, keep=False)
        return granted or self._reserved_for(await self._last_path(expansions[0]))

    async def _last_path(self, asked: Expansion) -> Expansion | None:
        """What to do with a budget that is too small for another step: finish the best path that can be finished. Until
        one is finished, do what can be done. None: nothing."""
        none_finished, left = not self._tree.longest_path, self._meter.tokens.remaining
        leaf = await best_leaf(
            self._tree, self._settings.strategy, lambda end: none_finished or self._needs.tokens(end) <= left
        )
        if leaf is not None:
            return Expansion(leaf, 1, self._finish, lookahead=True)
        if not none_finished:
            return None
        if self._meter.nodes.remaining == 1:
            return asked._replace(count=1, stop_condition=StopCondition.SOLUTION, lookahead=True)
        return asked._replace(count=1)

    def _reserved_for(self, expansion: Expansion | None) -> Granted:
        """The expansion with all that is left reserved for it."""
        if expansion is None or not (costs := self._reserve(expansion)):
            return []
        return [(expansion, costs)]

    def _reserve(self, expansion: Expansion, kept: Cost = NOTHING, least_tokens: int = 1) -> list[Cost]:
        """Reserves as `BudgetMeter.reserve`, the prompt of a new context included."""
        if not (prompt := _new_prompt(expansion)):
            return self._meter.reserve(self._costs(expansion), kept, least_tokens)
        self._meter.read(prompt)
        costs = self._meter.reserve(self._costs(expansion), kept, least_tokens)
        if not costs:
            self._meter.read(-prompt)
        return costs

    async def _composed(self, expansions: Sequence[Expansion]) -> list[Expansion]:
        """The expansions with new contexts, which are not in the tree yet, as the nodes of those that read."""
        assert self._composer is not None
        composed, turns = [], None if self._tree.in_flight else Turns()
        for expansion in expansions:
            if expansion.reads is None:
                composed.append(expansion)
                continue
            composed.append(expansion._replace(node=self._composer.context(expansion.reads)))
            if turns is not None:
                await turns.pass_on()
        return composed

    def _thinking_room(self, node: Node) -> int:
        """Most tokens of a solution behind its thought, one number for a call; 0: that of the search's own prompt."""
        if node.context is None or not self._limits.thinking_context:
            return 0
        return self._limits.solution_tokens(node)

    def _costs(self, expansion: Expansion) -> list[Cost]:
        tokens, nodes = self._limits.tokens(expansion.node), 1
        if self._stop_condition(expansion) is StopCondition.SOLUTION:
            nodes = self._limits.steps(expansion.node)
        else:
            tokens = min(tokens, self._settings.max_step_tokens + self._limits.thinking(expansion.node))
        return [Cost(tokens, nodes)] * expansion.count

    def _stop_condition(self, expansion: Expansion) -> StopCondition:
        return expansion.stop_condition or self._settings.strategy.stop_condition

    async def _entered(self, expansion: Expansion, costs: Sequence[Cost], turns: Turns | None) -> Branches:
        """The branches of an expansion, entered into the tree."""
        parent, replays = expansion.node, self._tree.replays
        if expansion.reads is not None and isinstance(parent, ContextNode):
            self._tree.begin(parent)
        whole = self._stop_condition(expansion) is StopCondition.SOLUTION
        least = len(costs) if expansion.lookahead or replays is not None else max(1, expansion.least)
        nodes: Branches = []
        for number, cost in enumerate(costs):
            # Every node below a lookahead is one too, so its children take ordinary indices.
            [node] = self._tree.request(parent, 1, expansion.lookahead and not parent.is_lookahead)
            node.request = ExpansionRequest(whole, cost.tokens, cost.nodes, optional=number >= least)
            nodes.append(node)
            if turns is not None:
                await turns.pass_on()
        if replays is None:
            return nodes
        given_back = [node for node in nodes if node.id in replays]
        for node in given_back:
            self._meter.settle(reserved(node), NOTHING)
        self._tree.give_back(given_back)
        return [node for node in nodes if node.id not in replays]


def _new_prompt(expansion: Expansion) -> int:
    """Number of tokens of the prompt of the expansion's new context, 0 without one."""
    context = None if expansion.reads is None else expansion.node.context
    return 0 if context is None else context.prompt_tokens
