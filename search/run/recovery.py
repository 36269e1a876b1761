"""What a search that goes on takes back of how the one before it ended."""

from search.tree import Node, NodeStatus, SearchTree


def take_up(tree: SearchTree) -> None:
    """Puts what was under way when the search ended back to where it was, and takes back the neutral rewards by which
    nothing was decided yet.

    Neutral rewards that have decided where the tree grew stay: what grew is written and paid for.
    """
    for node in tree.nodes:
        if node.status is NodeStatus.FAILED:
            tree.take_up(node)
    unsure = [node for node in list(tree.nodes)[tree.settled :] if node.neutral]
    if not unsure:
        return
    for node in unsure:
        tree.score_again(node)
    # Others of their level were given up in comparison with them. The strategy compares anew when all are scored.
    depth = min(map(_searched_depth, unsure))
    for node in tree.nodes:
        if node.status is NodeStatus.PRUNED and node.reward is not None and _searched_depth(node) >= depth:
            tree.reopen(node)


def _searched_depth(node: Node) -> int:
    """The depth of the node, or of the one that it is a lookahead of."""
    return next((depth for depth, index in enumerate(node.id) if index < 0), node.depth)
