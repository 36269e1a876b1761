"""From what the ports said to the tree: steps written, rewards given, paths that end."""

from collections.abc import Sequence
from dataclasses import dataclass

from search.answers.extraction import boxed_answer
from search.budget import BudgetMeter, Cost
from search.errors import GeneratorError
from search.ports import Child, StopCondition
from search.run.planning import Batch, PathLimits
from search.tree import Node, SearchTree, Step, StepEnd


@dataclass
class Tally:
    """The running figures of a ``SearchCost``."""

    expand_calls: int = 0
    scored_steps: int = 0
    prefix_tokens: int = 0
    cached_tokens: int = 0
    root_cached_tokens: int = 0


class Results:
    """Enters children and rewards into the tree of one search. What comes late or twice changes nothing."""

    def __init__(self, tree: SearchTree, limits: PathLimits, meter: BudgetMeter) -> None:
        self.tally = Tally()
        self._tree = tree
        self._limits = limits
        self._meter = meter

    def receive(self, child: Child, batch: Batch) -> list[Node] | None:
        """Settles the branch of ``child`` and writes its steps into the tree.

        Returns the nodes written, first step first: none if the node was given up meanwhile. None if
        ``batch`` does not wait for this child: it came before, or was never asked for.

        Raises:
            GeneratorError: the child has no steps.
        """
        node_id = (*child.parent, child.index)
        reservation = batch.reservations.get(node_id)
        if reservation is None:
            return None
        if not child.steps:
            raise GeneratorError(f"the generator returned child {child.index} of {child.parent} without a step")
        del batch.reservations[node_id]
        steps = joined(child.steps, min(reservation.nodes, _steps_to_answer(child.steps)))
        self._meter.settle(reservation, Cost(sum(len(step.token_ids) for step in steps), len(steps)))
        self._count(child)
        return self._write(self._tree[node_id], steps)

    def complete(
        self, chain: Sequence[Node], rewards: Sequence[float | None], stop_condition: StopCondition, neutral: bool
    ) -> list[Node]:
        """Gives the nodes of ``chain`` their rewards; the last is terminal where the path cannot go on. ``neutral``:
        whether the rewards only stand in.

        Returns those that are complete now: not those given up meanwhile.
        """
        completed: list[Node] = []
        for node, reward in zip(chain, rewards, strict=True):
            if self._tree.complete(node, reward, node is chain[-1] and self._ends(node, stop_condition), neutral):
                completed.append(node)
                self.tally.scored_steps += reward is not None
        return completed

    def _write(self, node: Node, steps: Sequence[Step]) -> list[Node]:
        if not self._tree.write(node, steps[0]):
            return []
        chain = [node]
        for step in steps[1:]:
            chain.append(self._tree.extend(chain[-1], step))
        return chain

    def _ends(self, node: Node, stop_condition: StopCondition) -> bool:
        """Whether nothing can be written below ``node``."""
        step = node.step
        return (
            step is None
            or stop_condition is StopCondition.SOLUTION
            or step.end is not StepEnd.DELIMITER
            # A step of no tokens would be written again and again until the depth is used up.
            or not step.token_ids
            or boxed_answer(step.text) is not None
            or self._limits.tokens(node) < 1
            or self._limits.steps(node) < 1
        )

    def _count(self, child: Child) -> None:
        self.tally.prefix_tokens += len(self._limits.prompt) + len(self._tree[child.parent].token_ids)
        self.tally.cached_tokens += child.cached_tokens
        if not child.parent:
            self.tally.root_cached_tokens = max(self.tally.root_cached_tokens, child.cached_tokens)


def _steps_to_answer(steps: Sequence[Step]) -> int:
    """How many steps it takes to the first that has an answer: a path ends there, and what follows belongs to it."""
    return next((index for index, step in enumerate(steps, 1) if boxed_answer(step.text) is not None), len(steps))


def joined(steps: Sequence[Step], most: int) -> list[Step]:
    """``steps`` as at most ``most``: the last takes in all that would be too many."""
    if len(steps) <= most:
        return list(steps)
    tail = steps[most - 1 :]
    logprobs = [step.logprob for step in tail if step.logprob is not None]
    last = Step(
        token_ids=tuple(token for step in tail for token in step.token_ids),
        text="".join(step.text for step in tail),
        end=tail[-1].end,
        logprob=sum(logprobs) if len(logprobs) == len(tail) else None,
    )
    return [*steps[: most - 1], last]
