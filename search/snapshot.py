"""A tree as JSON: a view to read and compare (`tree_as_json`), and a snapshot to resume from (`save_tree`)."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, field_validator, model_validator

from search.tree import (
    COMPLETE,
    FIRST_CONTEXT,
    ContextNode,
    ExpansionRequest,
    HookEffect,
    Node,
    NodeId,
    NodeStatus,
    SearchTree,
    Span,
    Step,
    StepEnd,
    Thought,
    TreeError,
    context_id,
)

SNAPSHOT_VERSION, CONTEXTS_VERSION = 2, 3
"""The version of a tree, and that of a tree with contexts, which readers of version 2 cannot take for one."""
MAX_SAVED_NODES = 100_000
MAX_LOGPROB = 1e12
"""Largest absolute log-probability of a step in a ``TreeView``, nats: far beyond any real text, and sums stay
finite."""
SCORED = COMPLETE | {NodeStatus.REPEATED}
"""The statuses of a node that may have a reward."""
Index = Annotated[int, Field(ge=-MAX_SAVED_NODES, lt=FIRST_CONTEXT + MAX_SAVED_NODES)]


def logprob_as_json(logprob: float | None) -> float | str | None:
    """``logprob``, with minus infinity as the string ``"-Infinity"``, as protocol buffers write it: JSON has no number
    for it, and models report it for tokens of probability zero."""
    return "-Infinity" if logprob == -math.inf else logprob


def _summable(logprob: float) -> float:
    if logprob != -math.inf and abs(logprob) > MAX_LOGPROB:
        raise ValueError(f"must be minus infinity or between -{MAX_LOGPROB:g} and {MAX_LOGPROB:g}")
    return logprob


# No NaN is less than infinity.
Logprob = Annotated[
    float, Field(lt=math.inf, allow_inf_nan=True), PlainSerializer(logprob_as_json, when_used="json-unless-none")
]
"""A finite number or minus infinity, nats; exact through JSON."""


def tree_as_json(tree: SearchTree) -> dict[str, Any]:
    """The tree without its root. Nodes are ordered by id, so equal trees give equal JSON whatever arrived first.

    Fields of a node:

    - ``id``: the path of child indices.
    - ``text``, ``end``: the text that the generator wrote and why it ends; null for a node that was never written.
    - ``tokens``: the number of its tokens; 0 for a node that was never written.
    - ``ends``: whether the path ends here.
    - ``reward``: null for a node that was never scored.
    - ``logprob``: the sum of the tokens' log-probabilities (nats), or the string ``"-Infinity"``; null if unknown.
    - ``count``: how often the text was written among its siblings; 0 for a ``repeated`` node, which the sibling of the
      same text and end counts.
    - ``token_ids``, ``token_logprobs``: present only if the tokens' log-probabilities are known.
    - ``thought``: the thinking with which the text begins, marks included, present only if there is any: its number of
      ``tokens`` and of ``characters``.
    - ``given``: the spans of the step's tokens that the model was given and did not write, each from its first index to
      before its second, present only if there are any. The log-probability of each of these tokens is 0.
    - ``hook``: what the step hook did with the step, present only if it did anything: the ``text`` that it added after
      the step with its ``token_ids``, whether it ``ends`` the path, whether it ``failed``.

    ``given_back`` are the ids of children that were given back, ``prefill_rewards`` the rewards of the prefill's steps,
    present only if there are any. ``open_thought`` is the mark of the thought in which all paths begin, present only if
    there is one. ``contexts`` are those of the tree by round and id, present (and ``version`` 3) only if there are any:
    each with its ``id``, with which the ids of the nodes below it begin; ``sources``, the last nodes of the paths that
    it shows, in order; its ``template`` and ``note``; ``prompt_tokens``; the ``digest`` of its prompt; and how
    many further sources it left ``unread``, because there was no room for them.
    ``TreeView`` reads this format.
    """
    return {"version": version_of(tree), "nodes": list(nodes_as_json(tree)), **rest_as_json(tree)}


def version_of(tree: SearchTree) -> int:
    """The version in which a tree is written."""
    return CONTEXTS_VERSION if tree.contexts else SNAPSHOT_VERSION


def rest_as_json(tree: SearchTree) -> dict[str, Any]:
    """The fields of ``tree_as_json`` after the nodes."""
    rest: dict[str, Any] = {"given_back": [list(node_id) for node_id in given_back(tree)]}
    if tree.root.prefill_rewards:
        rest["prefill_rewards"] = list(tree.root.prefill_rewards)
    if tree.open_thought:
        rest["open_thought"] = tree.open_thought
    if tree.contexts:
        rest["contexts"] = [SavedContext.of(context).model_dump(mode="json") for context in by_round(tree.contexts)]
    return rest


def given_back(tree: SearchTree) -> list[NodeId]:
    """The ids of the children that were given back, in order. Visits every node: too slow for decisions."""
    if not tree.given_back:
        return []
    return sorted((*node.id, index) for node in (tree.root, *tree.contexts, *tree.nodes) for index in node.given_back)


def replay_of(tree: SearchTree) -> SearchTree:
    """An empty tree in which a search of the same settings grows ``tree`` again: with the same seed, and requesting
    all of its branches except those that were given back."""
    again = SearchTree(tree.seed)
    again.replays = frozenset(given_back(tree))
    return again


def nodes_as_json(tree: SearchTree) -> Iterator[dict[str, Any]]:
    """The nodes of ``tree_as_json``, one at a time."""
    stack, contexts = [tree.root], _by_first_source(tree)
    while stack:
        node = stack.pop()
        if node.parent is not None:
            yield _node_as_json(node)
        # In the order of ids: lookaheads have negative indices, so they go on the stack last.
        stack += contexts.get(node, ())
        stack += [node.children[index] for index in sorted(node.children, reverse=True)]
        stack += [node.lookaheads[index] for index in sorted(node.lookaheads, reverse=True)]


def by_round(contexts: Iterable[ContextNode]) -> list[ContextNode]:
    """Contexts behind those whose paths they read, in an order that does not depend on arrival."""
    return sorted(contexts, key=lambda context: (context.round, context.id))


def _by_first_source(tree: SearchTree) -> dict[Node, list[ContextNode]]:
    """The contexts by the node whose id theirs begins with, the last ones first."""
    contexts: defaultdict[Node, list[ContextNode]] = defaultdict(list)
    for context in sorted(tree.contexts, key=lambda each: each.id, reverse=True):
        contexts[context.reading.sources[0]].append(context)
    return contexts


class HookView(BaseModel):
    """A `search.tree.HookEffect` of a saved tree, and in ``tree_as_json``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: str = ""
    token_ids: list[Annotated[int, Field(ge=0)]] = []
    ends: bool = False
    failed: bool = False

    @classmethod
    def of(cls, effect: HookEffect | None) -> Self | None:
        return None if effect is None else cls.model_validate(effect._asdict())

    @property
    def effect(self) -> HookEffect:
        return HookEffect(self.text, tuple(self.token_ids), self.ends, self.failed)


class ThoughtView(BaseModel):
    """A `search.tree.Thought` of a saved tree, and in ``tree_as_json``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tokens: int = Field(ge=0, le=1 << 31)
    characters: int = Field(ge=0, le=1 << 31)

    @classmethod
    def of(cls, thought: Thought) -> Self | None:
        return cls.model_validate(thought._asdict()) if thought.tokens else None

    @property
    def thought(self) -> Thought:
        return Thought(self.tokens, self.characters)


GivenSpans = list[tuple[Annotated[int, Field(ge=0, le=1 << 31)], Annotated[int, Field(ge=0, le=1 << 31)]]]


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(spans: Sequence[object]) -> bool:
    return not spans


class NodeView(BaseModel):
    """One node of ``tree_as_json``. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    id: NodeId = Field(min_length=1)
    text: str | None
    reward: float | None = Field(ge=0.0, le=1.0)
    status: NodeStatus
    tokens: int = Field(ge=0, le=1 << 31)
    logprob: Annotated[Logprob, AfterValidator(_summable)] | None
    count: int = Field(1, ge=0, le=MAX_SAVED_NODES)
    thought: ThoughtView | None = Field(None, exclude_if=_is_none)
    given: GivenSpans = Field([], exclude_if=_is_empty)
    hook: HookView | None = Field(None, exclude_if=_is_none)

    @property
    def written_tokens(self) -> int:
        """Number of its tokens that the model wrote."""
        return self.tokens - sum(end - start for start, end in self.given)

    @property
    def solution(self) -> str:
        """The text behind the thinking, as `search.tree.Step.solution`; empty for a node that was never written."""
        text = self.text or ""
        return text[self.thought.characters :].lstrip() if self.thought else text

    @property
    def is_lookahead(self) -> bool:
        """Whether this node or one above it is a lookahead: part of no path that the search itself grew."""
        return min(self.id) < 0

    @property
    def reads(self) -> bool:
        """Whether it belongs to a context: its prompt is not the question's."""
        return max(self.id) >= FIRST_CONTEXT


class WrittenNode(NodeView):
    """A node of ``tree_as_json`` with all its fields."""

    end: StepEnd | None = None
    ends: bool = False
    token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    token_logprobs: list[Logprob] | None = None
    """Present with ``token_ids``, one for each."""


class SavedContext(BaseModel):
    """A context of a saved tree, and in ``tree_as_json``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: Annotated[tuple[Index, ...], Field(min_length=2)]
    sources: Annotated[list[tuple[Index, ...]], Field(min_length=1, max_length=MAX_SAVED_NODES)]
    """Ids of the nodes that it shows, in order."""
    template: str
    note: str = ""
    prompt_tokens: int = Field(ge=0, le=1 << 31)
    digest: str
    """Digest of the prompt."""
    unread: int = Field(0, ge=0, le=MAX_SAVED_NODES)
    """Number of further sources that were left out because the context length has no room for them."""

    @model_validator(mode="after")
    def _begins_with_its_first_source(self) -> Self:
        if self.id[:-1] != self.sources[0] or self.id[-1] < FIRST_CONTEXT:
            raise ValueError("id must be that of the first source and the index of a context")
        return self

    @classmethod
    def of(cls, context: ContextNode) -> Self:
        reading = context.reading
        return cls(
            id=context.id,
            sources=[source.id for source in reading.sources],
            template=reading.template,
            note=reading.note,
            prompt_tokens=context.prompt_tokens,
            digest=context.digest,
            unread=context.unread,
        )

    def restore(self, tree: SearchTree) -> None:
        """Adds the context to a tree that has its sources.

        Raises:
            ValueError: it has not.
        """
        try:
            tree.restore_context(
                self.id, self.sources, self.template, self.note, self.prompt_tokens, self.digest, self.unread
            )
        except (KeyError, TreeError, ValueError) as error:
            raise ValueError(f"context {list(self.id)} cannot be added to the tree: {error}") from error


def _distinct_ids(contexts: Sequence[SavedContext]) -> set[NodeId]:
    """The ids of contexts. Raises ValueError if two have the same."""
    ids = {context.id for context in contexts}
    if len(ids) < len(contexts):
        raise ValueError("two contexts have the same id")
    return ids


class TreeView(BaseModel):
    """The parsed form of ``tree_as_json``, validated as a tree: the nodes above every node are there and written, and
    terminal nodes have no children."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[2, 3]
    nodes: list[WrittenNode]
    given_back: list[Annotated[NodeId, Field(min_length=1)]] = []
    """Ids of children that were given back."""
    prefill_rewards: list[Annotated[float, Field(ge=0.0, le=1.0)]] = []
    """Rewards of the prefill's steps that are part of every path's score."""
    open_thought: str = ""
    """The mark of the thought in which every path begins; empty: none."""
    contexts: list[SavedContext] = Field([], exclude_if=_is_empty)

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        nodes = {node.id: node for node in self.nodes}
        if len(nodes) < len(self.nodes):
            raise ValueError("two nodes have the same id")
        contexts = _distinct_ids(self.contexts)
        for index, context in enumerate(self.contexts):
            if any(source not in nodes or nodes[source].text is None for source in context.sources):
                raise ValueError(f"contexts.{index}: a source is missing or not written")
        for index, node in enumerate(self.nodes):
            parent = nodes.get(node.id[:-1])
            begins = len(node.id) == 1 or node.id[:-1] in contexts
            if not begins and (parent is None or parent.text is None or parent.status is NodeStatus.TERMINAL):
                raise ValueError(
                    f"nodes.{index}: its id names a position below a node that is missing, not written or terminal"
                )
            if node.text is None and node.status is NodeStatus.TERMINAL:
                raise ValueError(f"nodes.{index} is terminal but has no text")
        for index, node_id in enumerate(self.given_back):
            begins = len(node_id) == 1 or node_id[:-1] in contexts
            if node_id in nodes or not (begins or node_id[:-1] in nodes):
                raise ValueError(f"given_back.{index}: its id is a node's, or its parent is missing")
        return self


def tree_of_view(view: TreeView, seed: int, merges_siblings: bool) -> SearchTree:
    """Rebuilds a tree from its view, without token ids and generator requests, which the view lacks. Its paths can be
    ranked and voted on as in the search.

    Raises:
        ValueError: siblings are missing, or a repeated node has no sibling of the same text.
    """
    tree = SearchTree(seed)
    tree.merges_siblings = merges_siblings
    tree.root.prefill_rewards = tuple(view.prefill_rewards)
    tree.open_thought = view.open_thought
    given_back = _by_parent(view.given_back)
    tree.restore_given_back((), given_back.get((), []))
    # Sources before the nodes that read them, parents before children, siblings and lookaheads in their order.
    waiting = {context.id: context for context in view.contexts}
    order = {(): -1} | {context.id: number for number, context in enumerate(view.contexts)}
    nodes = sorted(
        view.nodes, key=lambda node: (order.get(context_id(node.id), -1), len(node.id), node.id[:-1], abs(node.id[-1]))
    )
    for node in nodes:
        if (context := waiting.pop(node.id[:-1], None)) is not None:
            context.restore(tree)
            tree.restore_given_back(context.id, given_back.get(context.id, []))
        step = None
        if node.text is not None:
            thought = node.thought.thought if node.thought else Thought()
            step = Step((), node.text, node.end or StepEnd.DELIMITER, node.logprob, thought=thought)
        ends = node.ends or node.status is NodeStatus.TERMINAL
        try:
            hook = node.hook.effect._replace(token_ids=()) if node.hook and step else None
            tree.restore(node.id, node.status, step, node.reward, None, ends=ends, hook=hook)
            tree.restore_given_back(node.id, given_back.get(node.id, []))
        except (KeyError, ValueError) as error:
            raise ValueError(f"node {list(node.id)} cannot be added to the tree: {error}") from error
    tree.restore_repeats()
    return tree


class SavedStep(BaseModel):
    """A `search.tree.Step` of a saved tree."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    token_ids: list[Annotated[int, Field(ge=0)]]
    text: str
    end: StepEnd
    logprob: Logprob | None
    token_logprobs: list[Logprob] | None = None
    thought: ThoughtView | None = Field(None, exclude_if=_is_none)
    given: GivenSpans = Field([], exclude_if=_is_empty)
    counted: int | None = Field(None, ge=0, le=1 << 31, exclude_if=_is_none)

    @model_validator(mode="after")
    def _is_counted_once(self) -> Self:
        if self.counted is not None and self.token_ids:
            raise ValueError("counted is the number of tokens of a step without token_ids")
        return self

    @model_validator(mode="after")
    def _one_for_each_token(self) -> Self:
        if self.token_logprobs is not None and len(self.token_logprobs) != len(self.token_ids):
            raise ValueError("token_logprobs must have one entry for each of token_ids")
        return self

    @model_validator(mode="after")
    def _within_the_step(self) -> Self:
        size = len(self.token_ids) if self.counted is None else self.counted
        bounds = [bound for span in self.given for bound in span]
        if bounds != sorted(bounds) or any(bound > size for bound in bounds):
            raise ValueError("given must be spans of token_ids, in order")
        if self.thought and (self.thought.tokens > size or self.thought.characters > len(self.text)):
            raise ValueError("the thought is longer than the step")
        return self


class SavedNode(BaseModel):
    """A `search.tree.Node` of a saved tree."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    id: list[Index] = Field(min_length=1)
    status: NodeStatus
    step: SavedStep | None
    reward: float | None = Field(ge=0.0, le=1.0)
    neutral: bool = False
    ends: bool = False
    hook: HookView | None = Field(None, exclude_if=_is_none)
    request: tuple[bool, Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.step is None and self.request is None:
            raise ValueError("the node has neither a step nor a request")
        if self.step is None and self.hook is not None:
            raise ValueError("the node has no step that the step hook could have seen")
        if (self.reward is not None or self.neutral) and self.status not in SCORED:
            raise ValueError(f"a node that is {self.status} cannot have a reward")
        if self.neutral and self.reward is None:
            raise ValueError("the node is marked neutral but has no reward")
        return self


class SavedTree(BaseModel):
    """Everything that a search needs to resume. Nothing is rounded, and nodes are in the order of their requests."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[2, 3]
    seed: int = Field(ge=0, lt=1 << 63)
    merges_siblings: bool = False
    settled: int = Field(0, ge=0, le=MAX_SAVED_NODES)
    nodes: list[SavedNode] = Field(max_length=MAX_SAVED_NODES)
    given_back: list[Annotated[list[Index], Field(min_length=1)]] = Field([], max_length=MAX_SAVED_NODES)
    """Ids of children that were given back."""
    contexts: list[SavedContext] = Field([], max_length=MAX_SAVED_NODES, exclude_if=_is_empty)
    """In the order of their creation."""

    @field_validator("contexts")
    @classmethod
    def _are_different(cls, contexts: list[SavedContext]) -> list[SavedContext]:
        _distinct_ids(contexts)
        return contexts


def save_tree(tree: SearchTree) -> dict[str, Any]:
    """A snapshot of the tree, during a search or after it. ``restore_tree`` rebuilds the same tree from it."""
    nodes = [
        SavedNode(
            id=list(node.id),
            status=node.status,
            step=_saved_step(step) if (step := node.written_step) else None,
            reward=node.reward,
            neutral=node.neutral,
            ends=node.ends,
            hook=HookView.of(node.hook),
            request=node.request and node.request[:3],  # a generator may have granted it: it is not optional any more
        )
        for node in tree.nodes
    ]
    saved = SavedTree(
        version=version_of(tree),
        seed=tree.seed,
        merges_siblings=tree.merges_siblings,
        settled=tree.settled,
        nodes=nodes,
        given_back=[list(node_id) for node_id in given_back(tree)],
        contexts=[SavedContext.of(context) for context in tree.contexts],
    )
    return saved.model_dump(mode="json")


def restore_tree(saved: Any) -> SearchTree:
    """Rebuilds a tree from the snapshot of ``save_tree``.

    Raises:
        pydantic.ValidationError: fields are missing, unknown, or of the wrong type; or the version is not supported.
        ValueError: the nodes do not form a valid tree.
    """
    described = SavedTree.model_validate(saved)
    tree = SearchTree(described.seed)
    tree.settled, tree.merges_siblings = described.settled, described.merges_siblings
    given_back = _by_parent(described.given_back)
    tree.restore_given_back((), given_back.pop((), []))
    waiting = {context.id: context for context in described.contexts}
    for node in described.nodes:
        if (context := waiting.pop(tuple(node.id[:-1]), None)) is not None:
            context.restore(tree)
            tree.restore_given_back(context.id, given_back.pop(context.id, []))
        try:
            tree.restore(
                tuple(node.id),
                node.status,
                _step(node.step) if node.step else None,
                node.reward,
                ExpansionRequest(*node.request) if node.request else None,
                node.neutral,
                node.ends,
                node.hook.effect if node.hook else None,
            )
            tree.restore_given_back(tuple(node.id), given_back.pop(tuple(node.id), []))
        except (KeyError, ValueError) as error:
            raise ValueError(f"node {node.id} of the saved tree cannot be added to it: {error}") from error
    if waiting:
        raise ValueError(f"no node of the saved tree is below context {list(next(iter(waiting)))}")
    if given_back:
        raise ValueError(
            f"the saved tree has no node {list(next(iter(given_back)))}, below which children were given back"
        )
    tree.restore_repeats()
    if problems := tree.check_integrity():
        raise ValueError(f"the saved tree is not valid: {problems[0]}")
    return tree


def _by_parent(node_ids: Iterable[Sequence[int]]) -> dict[NodeId, list[int]]:
    """The child indices of these ids, grouped by parent."""
    indices: defaultdict[NodeId, list[int]] = defaultdict(list)
    for *parent, index in node_ids:
        indices[tuple(parent)].append(index)
    return indices


def _saved_step(step: Step) -> SavedStep:
    return SavedStep(**step._asdict() | {"thought": ThoughtView.of(step.thought)})


def _step(saved: SavedStep) -> Step:
    each = None if saved.token_logprobs is None else tuple(saved.token_logprobs)
    thought = saved.thought.thought if saved.thought else Thought()
    given = tuple(saved.given)
    return Step(tuple(saved.token_ids), saved.text, saved.end, saved.logprob, each, thought, given, saved.counted)


def hook_as_json(effect: HookEffect | None) -> dict[str, Any]:
    """The field ``hook`` of a node or of an event; nothing if the step hook did nothing."""
    return {} if effect in (None, HookEffect()) else {"hook": effect._asdict()}


def thinking_as_json(thought: Thought, given: Sequence[Span]) -> dict[str, Any]:
    """A step's ``thought`` and ``given`` as in `tree_as_json`, those that there are."""
    told = {"thought": thought._asdict()} if thought.tokens else {}
    return told | ({"given": [list(span) for span in given]} if given else {})


def _node_as_json(node: Node) -> dict[str, Any]:
    step = node.written_step if node.hook else node.step
    tokens: dict[str, Any] = {}
    if step is not None and step.token_logprobs is not None:
        logprobs = [logprob_as_json(logprob) for logprob in step.token_logprobs]
        tokens = {"token_ids": list(step.token_ids), "token_logprobs": logprobs}
    return {
        "id": list(node.id),
        "text": step.text if step else None,
        "reward": node.reward,
        "status": node.status.value,
        "tokens": step.size if step else 0,
        "end": step.end.value if step else None,
        "ends": node.ends,
        "logprob": logprob_as_json(step.logprob) if step else None,
        "count": node.count,
        **tokens,
        **(thinking_as_json(step.thought, step.given) if step else {}),
        **(hook_as_json(node.hook) if node.hook else {}),
    }
