"""From what the ports said to the tree: steps written, rewards given, paths that end."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from search.answers.extraction import boxed_answer
from search.budget import BudgetMeter, Cost
from search.ports import Child, Headroom, StopCondition
from search.run.planning import NOTHING, Batch, PathLimits, reserved
from search.run.report import SearchCost
from search.tree import Node, NodeStatus, SearchTree, Step, StepEnd


class Received(NamedTuple):
    """The nodes that a child has become, first step first; none if it was given up meanwhile."""

    unscored: list[Node]
    """Those whose texts are new: the last of them, since what follows a new text is new."""
    complete: list[Node]
    """Those whose rewards are known, because siblings of the same text have theirs. The others get theirs with them."""


class Results:
    """Enters children and rewards into the tree of one search. What comes late or twice changes nothing."""

    def __init__(self, tree: SearchTree, limits: PathLimits, meter: BudgetMeter, cost: SearchCost) -> None:
        self._cost = cost
        self._tree = tree
        self._limits = limits
        self._meter = meter

    def saw(self, headroom: Headroom) -> None:
        """A replica has told what it can still afford."""
        if headroom.total_blocks:
            share = round(headroom.free_blocks / headroom.total_blocks, 4)
            self._cost.least_headroom = min(self._cost.least_headroom, share)

    def receive(self, child: Child, batch: Batch) -> Received | None:
        """Settles the branch of ``child`` and writes its steps into the tree, or takes it out if it was given back.

        None if ``batch`` does not wait for this child: it came before, or was never asked for, or was given back though
        it must be written.
        """
        node = batch.pending.get((*child.parent, child.index))
        if node is None or not (child.steps or node.id in batch.optional):
            return None
        del batch.pending[node.id]
        if not child.steps:
            self._give_back(node)
            return Received([], [])
        most = reserved(node)
        steps = joined(child.steps, min(most.nodes, _steps_to_answer(child.steps)))
        written = Cost(sum(len(step.token_ids) for step in steps), len(steps))
        self._meter.settle(most, written)
        self._count(child, written)
        return self._write(node, steps, batch.stop_condition is StopCondition.SOLUTION)

    def complete(self, chain: Sequence[Node], rewards: Sequence[float | None], neutral: bool) -> list[Node]:
        """Gives the nodes of ``chain`` their rewards. ``neutral``: whether these only stand in.

        Returns those that are complete now, with those that repeat them: not those given up meanwhile.
        """
        completed: list[Node] = []
        for node, reward in zip(chain, rewards, strict=True):
            arrived = self._tree.complete(node, reward, neutral)
            completed += arrived
            self._cost.scored_steps += bool(arrived) and reward is not None
        return completed

    def _give_back(self, node: Node) -> None:
        """Takes a child that is not going to be written out of the tree, unless it was given up meanwhile."""
        self._meter.settle(reserved(node), NOTHING)
        self._cost.given_back_branches += 1
        if node.status is NodeStatus.PENDING:
            self._tree.give_back([node])

    def _write(self, node: Node, steps: Sequence[Step], whole: bool) -> Received:
        received = Received([], [])
        for number, step in enumerate(steps, start=1):
            above = node if number > 1 else node.parent
            assert above is not None
            ends = number == len(steps) and (whole or self._ends(above, step))
            if number > 1:
                node = self._tree.extend(node, step, ends)
            elif not self._tree.write(node, step, ends):
                return received
            if node.first.status is not NodeStatus.WRITTEN:
                received.complete.append(node)
            elif not (node.repeats or node.repeated_by):
                received.unscored.append(node)
        return received

    def _ends(self, above: Node, step: Step) -> bool:
        """Whether nothing can be written below ``step``, which was written below ``above``."""
        return (
            step.end is not StepEnd.DELIMITER
            # A step of no tokens would be written again and again until the depth is used up.
            or not step.token_ids
            or boxed_answer(step.text) is not None
            or self._limits.tokens(above) - len(step.token_ids) < 1
            or self._limits.steps(above) - 1 < 1
        )

    def _count(self, child: Child, written: Cost) -> None:
        self._cost.written_steps += written.nodes
        self._cost.generated_tokens += written.tokens
        self._cost.prefix_tokens += len(self._limits.prompt) + self._tree[child.parent].path_tokens
        self._cost.cached_tokens += child.cached_tokens
        self._cost.waiting_branches += child.waited
        if not child.parent:
            self._cost.root_cached_tokens = max(self._cost.root_cached_tokens, child.cached_tokens)


def _steps_to_answer(steps: Sequence[Step]) -> int:
    """How many steps it takes to the first that has an answer: a path ends there, and what follows belongs to it."""
    return next((index for index, step in enumerate(steps, 1) if boxed_answer(step.text) is not None), len(steps))


def joined(steps: Sequence[Step], most: int) -> list[Step]:
    """``steps`` as at most ``most``: the last takes in all that would be too many."""
    if len(steps) <= most:
        return list(steps)
    tail = steps[most - 1 :]
    logprobs = [step.logprob for step in tail if step.logprob is not None]
    each = [step.token_logprobs for step in tail if step.token_logprobs is not None]
    last = Step(
        token_ids=tuple(token for step in tail for token in step.token_ids),
        text="".join(step.text for step in tail),
        end=tail[-1].end,
        logprob=sum(logprobs) if len(logprobs) == len(tail) else None,
        token_logprobs=tuple(chain.from_iterable(each)) if len(each) == len(tail) else None,
    )
    return [*steps[: most - 1], last]
