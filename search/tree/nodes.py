"""Steps and nodes, the parts of a search tree.

A node's id is its path of child indices from the root, so the same id means the same position in every run of the same
search.

**Contexts.** A context is a further root: a node without a step and without a parent, whose prompt is composed of the
question and the texts of other nodes, its sources. Its id is that of its first source and an index of at least
``FIRST_CONTEXT``. Whatever walks up a path ends at it as at the root.
"""

import hashlib
from array import array
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from search.prompt import Prompt

NodeId = tuple[int, ...]
"""The path of child indices from the root; the root is ``()``."""
NO_PROMPT = Prompt()
FIRST_CONTEXT = 100_000
"""Index of the first context that has a node as its first source; no child has so high an index."""


def context_id(node_id: NodeId) -> NodeId:
    """The id of the context that a node belongs to, itself for one; ``()``, the root's, in the search's own prompt."""
    for end in range(len(node_id), 0, -1):
        if node_id[end - 1] >= FIRST_CONTEXT:
            return node_id[:end]
    return ()


def begins_paths(node_id: NodeId) -> bool:
    """Whether paths begin below this node: it is the root or a context."""
    return not node_id or node_id[-1] >= FIRST_CONTEXT


class StepEnd(StrEnum):
    """Why the generator stopped writing a step."""

    DELIMITER = "delimiter"
    """The step delimiter was written: the path may go on."""
    END_OF_SEQUENCE = "end_of_sequence"
    """The model ended the solution: the path is complete."""
    LENGTH = "length"
    """The token limit was reached: the text is cut off."""


class Thought(NamedTuple):
    """The thinking with which a step begins, marks included."""

    tokens: int = 0
    characters: int = 0


NO_THOUGHT = Thought()
Span = tuple[int, int]
"""A range of tokens, from the first index to before the second."""


class Step(NamedTuple):
    """One reasoning step as the generator wrote it, its delimiter included. The step of a node ends with the text that
    the step hook added to it, if any; the log-probabilities are those of the generator's tokens."""

    token_ids: tuple[int, ...]
    text: str
    end: StepEnd
    logprob: float | None = None
    """Sum of the tokens' log-probabilities (nats); None if the generator does not report it."""
    token_logprobs: tuple[float, ...] | None = None
    """Log-probability of each token (nats), 0 for a given one; None if the generator does not report them."""
    thought: Thought = NO_THOUGHT
    """The thinking before the solution's step, which no reward model reads. All of the step if the thought never
    ended."""
    given: tuple[Span, ...] = ()
    """Spans of ``token_ids`` that the model was given and did not write, such as the mark that closed its thought."""
    counted: int | None = None
    """Number of tokens where the generator tells the text alone, without ``token_ids``; None: it tells them."""

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.token_ids) if self.counted is None else self.counted

    @property
    def written_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        tokens = len(self.token_ids) if self.counted is None else self.counted
        return tokens - sum(end - start for start, end in self.given)

    @property
    def thinking_tokens(self) -> int:
        """Number of tokens that the model wrote as thinking."""
        return self.thought.tokens - sum(end - start for start, end in self.given if start < self.thought.tokens)

    @property
    def solution(self) -> str:
        """The text behind the thought: the step of the solution."""
        return self.text[self.thought.characters :].lstrip() if self.thought.characters else self.text


class HookEffect(NamedTuple):
    """What the step hook did with a step. All defaults: it left the step as it was."""

    text: str = ""
    """The text that it added after the step."""
    token_ids: tuple[int, ...] = ()
    """The tokens of ``text``."""
    ends: bool = False
    """Whether it ended the path."""
    failed: bool = False
    """Whether it failed, so that the step stays as it was."""


class ExpansionRequest(NamedTuple):
    """What the generator was asked to write for one branch."""

    whole: bool
    """Whether to write up to the end of the solution; otherwise one step."""
    tokens: int
    """Maximum number of tokens."""
    nodes: int
    """Maximum number of nodes that its steps may become."""
    optional: bool = False
    """Whether the generator may give it back."""


class NodeStatus(StrEnum):
    """State of a node's life cycle. Within one search a node only moves down this list and ends exactly once."""

    PENDING = "pending"
    """Requested from the generator, not written yet."""
    WRITTEN = "written"
    """Its step is written, its reward not known yet."""
    OPEN = "open"
    """Complete as a step; the path may grow below it."""
    WANDERING = "wandering"
    """Given up by the strategy, because the path repeats itself or is far longer than finished ones: never grows, and
    answers only if no path is finished."""
    TERMINAL = "terminal"
    """The path ends here and may answer."""
    PRUNED = "pruned"
    """Given up by the strategy: never grows, never answers."""
    REPEATED = "repeated"
    """A sibling represents its text: never scored itself, never grows, never answers."""
    FAILED = "failed"
    """In flight when the search ended: never written (it has no step), or written and never scored. A search that
    resumes the tree puts it back in flight."""


class Unread(Enum):
    """Marks a node whose answer has not been extracted yet."""

    UNREAD = "unread"


GIVEN_UP = frozenset({NodeStatus.WANDERING, NodeStatus.PRUNED})
ENDED = GIVEN_UP | {NodeStatus.TERMINAL, NodeStatus.REPEATED, NodeStatus.FAILED}
COMPLETE = GIVEN_UP | {NodeStatus.OPEN, NodeStatus.TERMINAL}
IN_FLIGHT = frozenset({NodeStatus.PENDING, NodeStatus.WRITTEN})


class SiblingKey(NamedTuple):
    """Key by which siblings are merged: their text, why it ended, and whether the path ends there."""

    text: str
    end: StepEnd
    ends: bool


class Reading(NamedTuple):
    """What a new context shows its readers."""

    sources: tuple["Node", ...]
    """The candidates, last nodes of their paths, in the order in which they are shown; at least one."""
    template: str
    """Name of the template (``select``, ``fuse``, ``refine``, …)."""
    note: str = ""
    """What is known beside them: failed checks, a program's error, criteria."""
    counts: tuple[int, ...] = ()
    """How many solutions have the same answer as each candidate, if the note is to tell it. Empty in a context, whose
    note has those of the candidates that its prompt shows."""


@dataclass(eq=False, slots=True)
class Continuations:
    """The steps written below a text, by all nodes that have this text."""

    samples: int = 0
    """Number of steps written, repeated and pruned ones included."""
    by_text: dict[SiblingKey, "Node"] | None = None
    """The node that represents each text; None if siblings are not merged."""
    standing: list["Node"] = field(default_factory=list)
    """The nodes of ``by_text``, ordered by id."""


@dataclass(eq=False, slots=True)
class Node:
    """One step of a path. Changed only through its tree."""

    id: NodeId
    parent: "Node | None" = field(repr=False)
    serial: int = 0
    """Its number in the order of requests; 0 for the root."""
    status: NodeStatus = NodeStatus.PENDING
    step: Step | None = None
    reward: float | None = None
    """The process reward of this step in [0, 1], fixed once given; None if unknown or nothing is scored."""
    neutral: bool = False
    """Whether the reward is a neutral one."""
    request: ExpansionRequest | None = None
    """The generator request; None for the later steps of a whole solution."""
    children: dict[int, "Node"] = field(default_factory=dict, repr=False)
    lookaheads: dict[int, "Node"] = field(default_factory=dict, repr=False)
    """Continuations that no strategy takes for its own paths, at indices -1, -2, …: lookaheads and rollouts, written to
    learn more about this step, and the rest of a path that a budget is kept for."""
    is_lookahead: bool = False
    """Whether this node or one above it is a lookahead: part of no path that the search itself grows."""
    count: int = 1
    """How often its text was written among its siblings; 0 for a node that repeats another."""
    repeats: "Node | None" = field(default=None, repr=False)
    """The sibling that represents this node, if it is repeated."""
    repeated_by: tuple["Node", ...] = field(default=(), repr=False)
    """The siblings that repeat this node."""
    continuations: Continuations | None = field(default=None, repr=False)
    """Shared with the siblings that repeat it; None until a step was written below or the node was repeated."""
    hook: HookEffect | None = None
    """What the step hook did with ``step``; None if it was not called."""
    ends: bool = False
    """Whether the path ends here, so that nothing can be written below."""
    context: "ContextNode | None" = field(default=None, repr=False)
    """The context that it belongs to, itself for one; None in the search's own prompt."""
    asked_below: bool = False
    """Whether branches were ever requested below it."""
    given_back: frozenset[int] = frozenset()
    """Indices of children that the generator gave back: they have no node and never will."""
    path_tokens: int = 0
    """Tokens on the path, those that the step hook added included, the prompt excluded."""
    thought_tokens: int = 0
    """Number of ``path_tokens`` that are thinking."""
    cached_tokens: int | None = None
    """Prefix tokens of its branch whose KV came from a cache; None for the later steps of a whole solution, which have
    no branch of their own, and in a restored tree."""
    prefill_rewards: tuple[float, ...] = ()
    """The rewards of the prefill's steps; only the root may have any."""
    score: tuple[Any, float | None] | None = field(default=None, repr=False)
    """Cache of `search.strategies.path_score.path_score`: the aggregation, and the score under it."""
    statistics: Any = field(default=None, repr=False)
    """A strategy's statistics of this node, kept by its fold (`SearchTree.fold`)."""
    answer: str | Unread | None = Unread.UNREAD
    """Cache of `SearchTree.answer_of`."""

    @property
    def first(self) -> "Node":
        """The node that represents this text: itself, unless it is repeated."""
        return self if self.repeats is None else self.repeats

    @property
    def distinct_children(self) -> list["Node"]:
        """One node for each distinct text written below this text, ordered by id. Where siblings are merged, their
        parent may be another node of this text: a whole solution stays where it was written."""
        below = self.continuations
        if below is None or below.by_text is None:
            return list(self.children.values())
        return below.standing.copy()

    @property
    def asked(self) -> int:
        """The number of children requested, including those given back, without lookaheads."""
        return len(self.children) + len(self.given_back)

    def given_back_after(self, index: int) -> int:
        """The number of consecutive children directly after that index that were given back."""
        after = index + 1
        while after in self.given_back:
            after += 1
        return after - index - 1

    @property
    def samples(self) -> int:
        """The number of steps written below this text, including repeated and pruned ones, without lookaheads."""
        return 0 if self.continuations is None else self.continuations.samples

    @property
    def depth(self) -> int:
        """Steps from the root or the context: 0 for these."""
        return len(self.id) if self.context is None else len(self.id) - len(self.context.id)

    @property
    def reading(self) -> Reading | None:
        """What a context shows its readers; None for all other nodes."""
        return None

    @property
    def search_parent(self) -> "Node | None":
        """The node whose text this one goes on from: its parent, or directly below a context its first source."""
        parent = self.parent
        return parent if parent is None or (reading := parent.reading) is None else reading.sources[0]

    @property
    def path(self) -> list["Node"]:
        """The nodes from the child of the root or of the context down to this node."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def lookahead_end(self, steps: int) -> "Node":
        """The last node of the lookahead from here, at most ``steps`` steps ahead; the node itself if there is none."""
        node = self
        for _ in range(steps):
            ahead = node.lookaheads or (node.children if node.is_lookahead else {})
            if not ahead:
                break
            node = ahead[min(ahead)]
        return node

    @property
    def rewards(self) -> list[float]:
        """The rewards of the path's steps that have one, in order, the prefill's first."""
        nodes = self.path
        root = nodes[0].parent if nodes else self
        before = () if root is None else root.prefill_rewards
        return [*before, *(node.reward for node in nodes if node.reward is not None)]

    @property
    def steps(self) -> list[Step]:
        steps: list[Step] = []
        node: Node | None = self
        while node is not None:  # Faster than by `path`: called at every step of long paths.
            if node.step is not None:
                steps.append(node.step)
            node = node.parent
        steps.reverse()
        return steps

    @property
    def ended_by_hook(self) -> bool:
        """Whether the step hook ended the path here: it is then no finished solution."""
        return self.hook is not None and self.hook.ends

    @property
    def written_step(self) -> Step | None:
        """The step as the generator wrote it, without the text that the step hook added."""
        step, hook = self.step, self.hook
        if step is None or hook is None or not hook.text:
            return step
        text, added = step.text[: len(step.text) - len(hook.text)], len(hook.token_ids)
        if step.counted is not None:
            return step._replace(text=text, counted=step.counted - added)
        return step._replace(token_ids=step.token_ids[: len(step.token_ids) - added], text=text)

    @property
    def text(self) -> str:
        """The text of the path, from the first step to this one, with the texts that the step hook added."""
        return "".join(step.text for step in self.steps)

    @property
    def written_text(self) -> str:
        """The text of the path as the generator wrote it, without the texts that the step hook added."""
        return "".join(step.text for node in self.path if (step := node.written_step))

    @property
    def token_ids(self) -> list[int]:
        """The ids of the path, those that the step hook added included, the prompt excluded."""
        return list(chain.from_iterable(map(_TOKEN_IDS, self.steps)))


@dataclass(eq=False, slots=True)
class ContextNode(Node):
    """A context: the beginning of the paths that read other nodes."""

    reading: Reading = field(kw_only=True, repr=False)
    prompt: Prompt = NO_PROMPT
    """What the paths below continue. Empty in a restored tree, until a search composes it again."""
    prompt_tokens: int = 0
    """Its size; known without it."""
    round: int = 1
    """1 if it reads nodes of the search's own prompt alone; one more than the last round that it reads otherwise."""
    unread: int = 0
    """Number of further sources that were left out because the context length has no room for them."""
    digest: str = ""
    """Digest of the prompt, for a search that composes it again."""

    def begin_with(self, prompt: Prompt) -> None:
        """Sets the prompt.

        Raises:
            ValueError: it is not the one that the tree was grown with.
        """
        digest = digest_of(prompt)
        if self.digest not in ("", digest):
            raise ValueError(f"the prompt of context {list(self.id)} is not the one that the tree was grown with")
        self.prompt, self.prompt_tokens, self.digest = prompt, prompt.size, digest


def digest_of(prompt: Prompt) -> str:
    """A digest of a prompt, in hexadecimal digits."""
    digest = hashlib.blake2b(prompt.messages.encode(), digest_size=8)
    digest.update(array("q", prompt.token_ids))
    return digest.hexdigest()


_TOKEN_IDS = attrgetter("token_ids")


class TreeError(RuntimeError):
    """A call that would break an invariant of the tree: a programming error."""
