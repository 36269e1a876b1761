"""Enters results from the ports into the tree: steps, rewards, ends of paths."""

from collections.abc import Sequence
from itertools import accumulate, chain

from search.answers.extraction import boxed_answer
from search.answers.thoughts import open_thought
from search.budget import NOTHING, BudgetMeter, Cost
from search.ports import Child, Headroom
from search.run.bill import Pace
from search.run.path_limits import PathLimits
from search.run.planning import requested, reserved
from search.run.report import SearchCost
from search.tree import HookEffect, Node, NodeStatus, SearchTree, Step, StepEnd

_BEHIND_THOUGHT = ".\n"
"""A text that is no thought and has no answer, for what is read behind it: not as the beginning of a text."""


class Results:
    """Enters children and rewards into the tree of one search. Late and repeated results change nothing."""

    def __init__(self, tree: SearchTree, limits: PathLimits, meter: BudgetMeter, cost: SearchCost) -> None:
        self._cost = cost
        self._tree = tree
        self._answered = boxed_answer(tree.beginning) is not None
        """Whether the prefill has an answer already: every path then ends with its first step."""
        self._limits = limits
        self._meter = meter
        self.pace = Pace()

    def saw(self, headroom: Headroom) -> None:
        """Records the headroom that a replica reported."""
        if headroom.total_blocks:
            share = round(headroom.free_blocks / headroom.total_blocks, 4)
            self._cost.least_headroom = min(self._cost.least_headroom, share)

    def receive(self, child: Child, seconds: float = 0.0) -> list[Node] | None:
        """Settles the budget of ``child``'s branch and writes its steps into the tree, or removes its node if it was
        given back. ``seconds``: the time since its call was made.

        Returns its nodes, first step first; none if the branch was given back, pruned or failed meanwhile. None if the
        tree does not wait for this child: it came before, was never requested, or was given back although it is not
        optional.
        """
        node_id = *child.parent, child.index
        if node_id not in self._tree:
            return None
        node = self._tree[node_id]
        came = node.step is not None or node.cached_tokens is not None
        if came or not (child.steps or requested(node).optional):
            return None
        node.cached_tokens = child.cached_tokens  # Says that it has arrived, even if it was pruned or failed meanwhile.
        if not child.steps:
            self._give_back(node)
            return []
        reservation = reserved(node)
        # The path ends at its first answer, and `joined` adds the text after it to that step.
        answer = self._answer_at(self._tree[child.parent], child.steps)
        steps = joined(child.steps, reservation.nodes if answer is None else min(reservation.nodes, answer))
        written = Cost(sum(step.written_tokens for step in steps), len(steps))
        self._meter.settle(reservation, written)
        self._count(child, written)
        self.pace.add(seconds, written.tokens)
        return self._write(node, steps)

    def hooked(self, node: Node, effect: HookEffect) -> bool:
        """Enters what the step hook did with a written step. Returns whether the step is to be scored now: it is not if
        the node was pruned or failed meanwhile.

        An added text that leaves no token for another step is dropped, and the path ends."""
        self._cost.hook_calls += 1
        self._cost.hook_failures += effect.failed
        if effect.text and self._limits.tokens(node.first) - len(effect.token_ids) < 1:
            effect = HookEffect(ends=True)
        if not self._tree.hook(node, effect):
            return False
        self._cost.hook_tokens += len(effect.token_ids)
        return True

    def complete(self, chain: Sequence[Node], rewards: Sequence[float | None], neutral: bool) -> list[Node]:
        """Gives the nodes of ``chain`` their rewards. ``neutral``: whether they are neutral or unsure, so that a
        search that resumes the tree asks again.

        Returns the nodes that are complete by this, repeated ones included. Nodes pruned or failed meanwhile are not
        among them.
        """
        completed: list[Node] = []
        for node, reward in zip(chain, rewards, strict=True):
            arrived = self._tree.complete(node, reward, neutral)
            completed += arrived
            self._cost.scored_steps += bool(arrived) and reward is not None
        return completed

    def _give_back(self, node: Node) -> None:
        """Settles a branch that was given back and removes its node, unless the node was pruned or failed meanwhile."""
        self._meter.settle(reserved(node), NOTHING)
        self._cost.given_back_branches += 1
        if node.status is NodeStatus.PENDING:
            self._tree.give_back([node])

    def _write(self, node: Node, steps: Sequence[Step]) -> list[Node]:
        whole, nodes = requested(node).whole, []
        for number, step in enumerate(steps, start=1):
            above = node if number > 1 else node.parent
            assert above is not None
            ends = number == len(steps) and (whole or self._ends(above, step))
            if number > 1:
                node = self._tree.extend(node, step, ends)
            elif not self._tree.write(node, step, ends):
                return []
            nodes.append(node)
        return nodes

    def _ends(self, above: Node, step: Step) -> bool:
        """Whether the path ends with ``step``, which was written below ``above``."""
        return (
            step.end is not StepEnd.DELIMITER
            # An empty step would repeat until max_depth is reached.
            or not step.size
            or self._answer_at(above, (step,)) is not None
            or self._limits.tokens_after(above, step) < 1
            or self._limits.steps(above) - 1 < 1
        )

    def _answer_at(self, above: Node, steps: Sequence[Step]) -> int | None:
        """The number of steps, written below ``above``, up to the first one with an answer; None if none has one. The
        first step of a path continues the prefill. A box in a thought that began earlier, in the prompt even, is none.
        """
        rest = self._tree.prefill.rest if above.depth == 0 else ""
        if above.depth == 0 and steps and self._answered:
            return 1
        behind, read = None, 0
        for number, step in enumerate(steps, start=1):
            if boxed_answer(rest + step.text if number == 1 else step.text) is None:
                continue
            if behind is None:
                behind = self._tree.beginning + above.text
            behind += "".join(each.text for each in steps[read:number])
            if boxed_answer(behind) is not None:
                return number
            # The box is in a thought: what follows is read behind the mark of that alone, or as text behind it. To read
            # everything again at each box would take quadratic time.
            behind, read = open_thought(behind) or _BEHIND_THOUGHT, number
        return None

    def _count(self, child: Child, written: Cost) -> None:
        self._cost.written_steps += written.nodes
        self._cost.generated_tokens += written.tokens
        self._cost.thinking_tokens += sum(step.thinking_tokens for step in child.steps)
        parent, prefix = self._tree[child.parent], child.prefix_tokens
        if prefix is None:
            prefix = self._limits.prompt_tokens(parent) + parent.path_tokens
        elif prefix and not child.parent:
            self._cost.prompt_tokens = prefix
        self._cost.prefix_tokens += prefix
        self._cost.estimated_branches += child.estimated
        self._cost.cached_tokens += child.cached_tokens
        self._cost.waiting_branches += child.waited
        self._cost.ahead_branches += child.ahead
        self._cost.tool_calls += child.tool.calls
        self._cost.tool_errors += child.tool.errors
        self._cost.tool_limits += child.tool.limits
        self._cost.tool_tokens += child.tool.tokens
        if not child.parent:
            self._cost.root_cached_tokens = max(self._cost.root_cached_tokens, child.cached_tokens)


def joined(steps: Sequence[Step], max_steps: int) -> list[Step]:
    """``steps`` cut to ``max_steps``; the surplus steps are joined into the last one. Only the first of ``steps`` may
    have a thought."""
    if len(steps) <= max_steps:
        return list(steps)
    tail = steps[max_steps - 1 :]
    logprobs = [step.logprob for step in tail if step.logprob is not None]
    token_logprobs = [step.token_logprobs for step in tail if step.token_logprobs is not None]
    last = Step(
        token_ids=tuple(token for step in tail for token in step.token_ids),
        text="".join(step.text for step in tail),
        end=tail[-1].end,
        logprob=sum(logprobs) if len(logprobs) == len(tail) else None,
        token_logprobs=tuple(chain.from_iterable(token_logprobs)) if len(token_logprobs) == len(tail) else None,
        thought=tail[0].thought,
        given=tuple(
            (start + begin, start + end)
            for start, step in zip(accumulate((step.size for step in tail), initial=0), tail, strict=False)
            for begin, end in step.given
        ),
        counted=None if tail[0].counted is None else sum(step.size for step in tail),
    )
    return [*steps[: max_steps - 1], last]
