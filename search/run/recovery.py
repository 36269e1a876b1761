"""Prepares the tree of an ended search for a search that resumes it."""

from search.tree import GIVEN_UP, Node, NodeStatus, SearchTree


def take_up(tree: SearchTree) -> None:
    """Puts failed nodes back in flight, and takes back neutral rewards that no decision has used yet.

    Neutral rewards that a decision has used stay: the steps grown from them are written and paid for. So it makes no
    difference whether the call of a stalled PRM or the search reaches its deadline first.
    """
    for node in tree.nodes:
        if node.status is NodeStatus.FAILED:
            tree.take_up(node)
    unsure = [node for node in list(tree.nodes)[tree.settled :] if node.neutral]
    if not unsure:
        return
    for node in unsure:
        tree.score_again(node)
    # Nodes of their level or below were given up beside them. The strategy decides anew once all are scored.
    depth = min(map(_searched_depth, unsure))
    for node in tree.nodes:
        if node.status in GIVEN_UP and node.reward is not None and _searched_depth(node) >= depth:
            tree.reopen(node)


def _searched_depth(node: Node) -> int:
    """The depth of the node, or for a lookahead the depth of the node that it looks ahead from."""
    own = node.id if node.context is None else node.id[len(node.context.id) :]
    return next((depth for depth, index in enumerate(own) if index < 0), len(own))
