"""Requests to the HTTP endpoint and replies from it, as typed values."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from search.run.report import SearchCost
from search.snapshot import HookView, Logprob, TreeView

NodeId = tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """One question with the settings of its search."""

    text: str
    search: Mapping[str, object] = field(default_factory=dict)
    """The request's ``search`` field; empty leaves the endpoint's default."""
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tree: bool = False
    """Whether the reply contains the whole tree; then it is not streamed."""
    effort: str | None = None
    """One of the operator's presets, in place of the endpoint's default search."""
    history: tuple[Mapping[str, str], ...] = ()
    """Earlier turns of the conversation, each with ``role`` and ``content``."""
    service_tier: str | None = None
    """``flex`` yields to other requests; None is the default tier."""

    def seeded(self) -> "Question":
        """The question with a seed: its own, or a random one (53 bits, which every JSON reader keeps exactly).
        Retries then repeat the same search."""
        if self.seed is not None or "seed" in self.search:
            return self
        return replace(self, seed=secrets.randbits(53))

    def as_json(self, model: str, stream: bool) -> dict[str, object]:
        """The request's body."""
        body: dict[str, object] = {
            "model": model,
            "messages": [*map(dict, self.history), {"role": "user", "content": self.text}],
        }
        if self.search:
            body["search"] = dict(self.search)
        if self.effort is not None:
            body["reasoning_effort"] = self.effort
        for name in ("seed", "temperature", "max_tokens", "service_tier"):
            if (value := getattr(self, name)) is not None:
                body[name] = value
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


class GroupedAnswer(BaseModel):
    """Paths with equivalent answers. Unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    answer: str
    """The answer as the best path states it."""
    paths: int
    share: float = 0.0
    """Share of all votes. A path that was written more often has more votes."""
    vote: float | None = None
    """What decided (``SearchBlock.selection``), in [0, 1]: the part of all weights, the share, or the best score."""
    weight: float
    """Sum of the paths' scores, each times the path's votes."""
    score: float | None = None
    """Score of the best path."""


class ReaderChoice(BaseModel):
    """What one reader of the solutions chose. Unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    chosen: NodeId | None = None
    """The last node of the solution; None if it named none that it was shown."""


class SearchBlock(SearchCost):
    """The reply's ``search`` block: what the search did and what it cost. Unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    strategy: str
    n: int | None = None
    seed: int | None = None
    stop_reason: str
    answer: str | None
    score: float | None = None
    agreement: float | None = None
    """The winning answer's share of all votes."""
    selection: str | None = None
    """The rule of the vote: ``weighted``, ``majority`` or ``naive``."""
    answers: tuple[GroupedAnswer, ...] = ()
    """All answers in the vote, by falling rank. Of very many the last are left out."""
    readers: tuple[ReaderChoice, ...] = ()
    degraded: bool

    @property
    def cost(self) -> SearchCost:
        """Only the fields of `SearchCost`."""
        return SearchCost.model_validate(self.model_dump())


class Usage(BaseModel):
    """OpenAI's token counts. Unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class StepScored(BaseModel):
    """Progress: a step was scored. The reward is None if the strategy scores nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node: NodeId = Field(min_length=1)
    text: str
    reward: float | None = None
    score: float | None = None
    terminal: bool = False
    tokens: int = 0
    """Tokens that the whole search has generated so far."""
    nodes: int = 0
    step_tokens: int = 0
    """Tokens of this step."""
    logprob: Logprob | None = None
    """Sum of their log-probabilities, nats; None if not requested."""
    prefix_tokens: int = 0
    """Tokens before this step, prompt included."""
    cached_tokens: int | None = None
    """Number of them whose KV came from a cache; None for the later steps of a whole solution."""
    repeats: NodeId | None = None
    """The sibling of the same text that represents the step, if it is another one."""
    repeated_by: tuple[NodeId, ...] = ()
    """The siblings of the same text that the step represents."""
    hook: HookView | None = Field(None, exclude_if=lambda hook: hook is None)
    """What the step hook did with the step, if anything."""

    @property
    def added(self) -> str:
        """The text that the step hook added after the step."""
        return self.hook.text if self.hook else ""


class AnswerText(NamedTuple):
    """Progress: a piece of the answer."""

    text: str


class Restarted(NamedTuple):
    """The stream broke and the search was retried: all events before this one are void."""

    reason: str


class Completion(NamedTuple):
    """The whole reply."""

    text: str
    finish_reason: str
    search: SearchBlock
    usage: Usage | None
    tree: TreeView | None = None
    """The tree, if the question asked for it."""
    prompt_token_ids: tuple[int, ...] = ()
    """Token ids of the prompt, which precede those of the tree, if the tree has any."""

    def as_json(self) -> dict[str, Any]:
        usage = self.usage.model_dump() if self.usage else None
        return {
            "content": self.text,
            "finish_reason": self.finish_reason,
            "search": self.search.model_dump(),
            "usage": usage,
        }


Event = StepScored | AnswerText | Restarted | Completion
"""An event of a streamed reply; the last one is the Completion."""
