"""The end of a search: which paths may answer, and the answer selected among them."""

from collections.abc import Sequence

from search.answers.equivalence import AnswerMatcher
from search.answers.voting import AnswerSelection, Candidate, choose
from search.strategies.base import Strategy
from search.strategies.path_score import aggregate, path_score
from search.tree import Node, NodeStatus, SearchTree


async def select_answer(
    ends: Sequence[Node], tree: SearchTree, strategy: Strategy, matcher: AnswerMatcher
) -> AnswerSelection:
    """The answer selected among the paths of ``tree`` that end in ``ends`` (at least one), by the strategy's rules."""
    answers = [tree.answer_of(node) for node in ends]
    answered = [index for index, answer in enumerate(answers) if answer is not None]
    groups = await matcher.group([answer for answer in answers if answer is not None])
    group_of = {answered[member]: number for number, members in enumerate(groups) for member in members}
    return choose(
        [
            Candidate(node, path_score(node, strategy.aggregation), answers[index], group_of.get(index))
            for index, node in enumerate(ends)
        ],
        strategy.selection,
    )


def best_open_path(tree: SearchTree, strategy: Strategy) -> Node | None:
    """The end of the best path that is not finished; None if nothing was written yet.

    Best is the highest score, then the longest path, then the lowest id.
    """
    leaves = [node for node in tree.with_status(NodeStatus.OPEN) if not _has_open_child(node)]
    return min(
        leaves,
        key=lambda node: (-aggregate(node.rewards, strategy.aggregation), -node.depth, node.id),
        default=None,
    )


def _has_open_child(node: Node) -> bool:
    return any(child.status is NodeStatus.OPEN for child in node.children.values())
