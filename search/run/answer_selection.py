"""Selects the answer of a search among the paths that may answer."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from search.answers.equivalence import WAIT_S, Grouping
from search.answers.meaning import TextEmbedding, compared, normalized
from search.answers.readings import grouped, of_text
from search.answers.voting import AnswerSelection, Ballot, Candidate, SelectionRule
from search.run.environment import Matcher
from search.strategies.base import Strategy
from search.strategies.path_score import path_score
from search.tools.turns import Turns
from search.tree import Node, NodeId, NodeStatus, SearchTree

_UNFINISHED = frozenset({NodeStatus.OPEN, NodeStatus.WANDERING})


async def select_answer(
    ends: Sequence[Node],
    tree: SearchTree,
    strategy: Strategy,
    matcher: Matcher | None,
    wait_s: float = WAIT_S,
    alike: bool = False,
    embedding: TextEmbedding | None = None,
) -> AnswerSelection[Node]:
    """The answer selected among the paths of ``tree`` that end in ``ends`` (at least one), by the strategy's rules. If
    no path has an answer, one with content is preferred to one that ended in its thought; and under ``medoid``, or if
    nothing is scored, texts are compared, by ``embedding`` if there is one.

    Answers that are not read after ``wait_s`` seconds are compared as text; without a ``matcher`` all are.
    If ``alike``, each path has one vote, however often it was written.
    """
    answers: list[str | None] = []
    candidates: list[Candidate[Node]] = []
    turns = Turns()
    for node in ends:
        answers.append(tree.answer_of(node))
        score = path_score(node, strategy.aggregation)
        votes = Fraction(1) if alike else strategy.votes(tree, node)
        candidates.append(Candidate(node, score, answers[-1], None, votes, strategy.vote_weight(score)))
        await turns.pass_on()
    answered = [index for index, answer in enumerate(answers) if answer is not None]
    given = [answer for answer in answers if answer is not None]
    if matcher is None:
        groups, unread = Grouping(grouped([of_text(answer) for answer in given]), 0)
    else:
        groups, unread = await matcher.grouping(given, wait_s)
    group_of = {answered[member]: number for number, members in enumerate(groups) for member in members}
    if not given:
        with_content: list[Candidate[Node]] = []
        for candidate in candidates:
            if not tree.ends_in_thought(candidate.node):
                with_content.append(candidate)
            await turns.pass_on()
        candidates = with_content or candidates
        is_scored = any(candidate.score is not None for candidate in candidates)
        if len(candidates) > 1 and (strategy.selection is SelectionRule.MEDOID or not is_scored):
            return await _nearest(candidates, tree, wait_s, embedding, strategy.selection is not SelectionRule.MEDOID)
    ballot: Ballot[Node] = Ballot()
    for index, candidate in enumerate(candidates):
        ballot.add(candidate._replace(group=group_of.get(index)))
        await turns.pass_on()
    return ballot.selected(strategy.selection)._replace(unread=unread)


async def _nearest(
    candidates: Sequence[Candidate[Node]],
    tree: SearchTree,
    wait_s: float,
    embedding: TextEmbedding | None,
    by_group: bool,
) -> AnswerSelection[Node]:
    """The answer selected by the texts of candidates without answers (`search.answers.meaning.compared`)."""
    texts: dict[str, tuple[int, str]] = {}
    names: list[int] = []
    turns = Turns()
    for candidate in candidates:
        text = tree.content_of(candidate.node)
        names.append(texts.setdefault(normalized(text), (len(texts), text))[0])
        await turns.pass_on()
    vectors = None
    if embedding is not None and len(texts) > 1:
        vectors = await embedding.vectors_of([text for _, text in texts.values()], wait_s)
    votes = [float(candidate.votes) for candidate in candidates]
    threshold = 1.0 if embedding is None else embedding.threshold
    groups, index = compared(names, votes, vectors, threshold, by_group)
    [group] = [group for group in groups if index in group]
    share = sum(votes[member] for member in group) / sum(votes)
    unread = len(texts) if embedding is not None and len(texts) > 1 and vectors is None else 0
    best = candidates[index]
    return AnswerSelection(best.node, None, best.score, share, (), unread, len(groups))


async def best_open_path(tree: SearchTree, strategy: Strategy) -> Node | None:
    """The last node of the best unfinished path; None if there is none."""
    return await _best(tree, strategy, lambda node: node.status in _UNFINISHED and not _has_unfinished_child(node))


async def best_leaf(tree: SearchTree, strategy: Strategy, fits: Callable[[Node], bool]) -> Node | None:
    """The node below which the best path goes on that the strategy has not continued: its last node, or the last one of
    its lookahead. None if none of these nodes ``fits``."""

    def end(node: Node) -> Node:
        return node.lookahead_end(strategy.max_depth)

    def is_leaf(node: Node) -> bool:
        is_open = node.status is NodeStatus.OPEN and end(node).status is NodeStatus.OPEN
        return is_open and not node.asked and fits(end(node))

    leaf = await _best(tree, strategy, is_leaf)
    return None if leaf is None else end(leaf)


async def answering_paths(candidates: list[Node], tree: SearchTree) -> list[Node]:
    """``candidates``, unless none of them is finished and a lookahead is: then the ends of all finished lookaheads,
    ordered by id. Without candidates, a lookahead that was cut off may answer too."""
    turns = Turns()
    for node in candidates:
        if tree.is_finished(node):
            return candidates
        await turns.pass_on()
    ended: list[Node] = []
    for node in tree.nodes:
        if node.is_lookahead and node.status is NodeStatus.TERMINAL:
            ended.append(node)
        await turns.pass_on()
    ended.sort(key=lambda node: node.id)
    return [node for node in ended if tree.is_finished(node)] or candidates or ended


async def _best(tree: SearchTree, strategy: Strategy, may_be: Callable[[Node], bool]) -> Node | None:
    """The best of the nodes that ``may_be``, without lookaheads: the highest score, then the longest path, then the
    lowest id."""

    def rank(node: Node) -> tuple[float, int, NodeId]:
        return -(path_score(node, strategy.aggregation) or 0.0), -node.depth, node.id

    best: Node | None = None
    turns = Turns()
    for node in tree.nodes:
        if not node.is_lookahead and may_be(node):
            best = node if best is None else min(best, node, key=rank)
        await turns.pass_on()
    return best


def _has_unfinished_child(node: Node) -> bool:
    return any(child.status in _UNFINISHED for child in node.children.values())
