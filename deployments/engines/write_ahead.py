"""Writing ahead: a replica begins the children of finished steps before their search asks for them.

A search asks for children once the reward model has scored its steps; until then the generator would have nothing to do
for it. What a child says follows from its prefix, its seed and its sampling parameters, and its seed from the search's
seed and its place in the tree. So the replica can begin a child by itself. If the search asks for exactly this child,
its request becomes the search's; what the search does not ask for is given up. The tree is the same either way: a wrong
guess costs tokens and nothing else.

A vote in rounds (`search.strategies.solutions`) asks for its next whole solutions once the earlier ones are complete
and leave it open. They have their seeds, too, so an idle replica begins those of all later rounds at once: the search
takes hardly longer than without rounds, and its answer is that of rounds.
"""

import asyncio
import heapq
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from deployments.engines.request_queue import Ending, EngineRequest, RequestQueue
from deployments.engines.segments import Until
from deployments.engines.settings import WriteAheadSetting
from kvstore.memory.clamp import StepLengths
from search.answers.extraction import boxed_answer
from search.ports import Ahead, AheadSamples, Child, ExpandRequest, Sampling, StopCondition, branch_seed
from search.tree import NodeId, StepEnd

if TYPE_CHECKING:
    from vllm import SamplingParams


class Device(NamedTuple):
    """How a replica writes ahead on a kind of device."""

    least_extent: float
    most_extent: float
    """Range of ``WriteAhead.extent`` under ``auto``: the lower end for rewards that come at once, the upper one if
    scoring a round takes as long as writing one."""
    least_turn_s: float
    """Under ``auto`` no steps are written ahead if the rewards of a search take less, seconds; infinite: never."""
    beside: int
    """Children are begun only while at most this many requested branches are unfinished. For whole solutions the
    branches of their own search do not count: they are what it would request at once, if it did not vote in rounds."""


CPU = Device(1.5, 3.0, 0.08, 0)
"""Beginning 1.5 times the expected number of children covers 88% of those that beam search then asks for, and a whole
level in 65% of cases; 3 times covers 95% and 86% (embedded models, n = 16). Beginning and giving up requests takes
some milliseconds of the replica's time: with the embedded models, whose rewards take 30 to 50 ms, writing ahead gained
2% for a search that is alone, and cost 5% with four at a time."""
GPU = Device(4.0, 4.0, 0.0, 8)
"""A few requests more in a step cost next to nothing there. Chosen by simulation (`benchmarks.cluster_sim ahead`)."""
WEIGHT = 0.05
"""Weight of the newest value in the moving averages."""
LINGER_TURNS, LEAST_LINGER_S, MOST_LINGER_S = 5, 2.0, 30.0
"""Children written ahead are aborted if the search makes no call for ``LINGER_TURNS`` times the average wait, within
the other two: a replica is not told that a search has ended."""
PRUNE_ABOVE = 1024
"""Length of the heap of children to begin above which those of past rounds are removed from it."""


class _Kind(NamedTuple):
    """Parameters of a call that determine the text of its branches, seeds and lengths apart."""

    sampling: Sampling
    logprobs: bool
    cache_salt: str
    stop_condition: StopCondition

    @classmethod
    def of(cls, request: ExpandRequest) -> "_Kind":
        return cls(request.sampling, request.logprobs, request.cache_salt, request.stop_condition)


@dataclass(eq=False, slots=True)
class _FinishedStep:
    """A step whose children may be written ahead. Siblings of the same text are one step if the search merges them. The
    root, if its children are whole solutions."""

    id: NodeId
    """The lowest id of its siblings: the one below which the search will ask."""
    token_ids: tuple[int, ...]
    """Token ids of the prompt and of the path up to and with this step."""
    thought_tokens: int
    """Tokens of the path's thoughts."""
    copies: int = 0
    children: list[EngineRequest] = field(default_factory=list)
    """Requests of its children that were begun, by index."""
    first: int = 0
    """Index of the first of ``children``."""


class _Round:
    """The steps that one call has written, and what was begun below them."""

    def __init__(self, request: ExpandRequest, ahead: Ahead | AheadSamples, params: "SamplingParams") -> None:
        self.search_id = request.search_id
        self.kind = _Kind.of(request)
        self.ahead = ahead
        self.root: _FinishedStep | None = None
        """Where the call writes whole solutions: the root, below which those of later rounds are begun."""
        self._thoughts: Mapping[NodeId, str] = {}
        self._thought_tokens: Mapping[NodeId, int] = {}
        if isinstance(ahead, Ahead):
            self._thoughts, self._thought_tokens = dict(ahead.thoughts), dict(ahead.thought_tokens)
        self.params = params
        """Parameters of every child but for seed and length."""
        self.steps: dict[tuple[NodeId, str | int], _FinishedStep] = {}
        """By parent and text, or by parent and index if siblings are not merged."""
        self.over = False
        """Whether the search has made its next call, or has ended."""
        if isinstance(ahead, AheadSamples):
            self.root = _FinishedStep((), request.expansions[0].prefix, thought_tokens=0, first=ahead.first)
            self.steps[(), ""] = self.root

    def hand_on(self, newest: "_Round") -> None:
        """Hands the solutions that were begun for rounds after the newest one on to it."""
        if self.root is not None and newest.root is not None:
            wanted = max(0, newest.root.first - self.root.first)
            newest.root.children = self.root.children[wanted:]
            del self.root.children[wanted:]

    def add(self, child: Child, token_ids: tuple[int, ...]) -> tuple[_FinishedStep, Sequence[EngineRequest]] | None:
        """Adds a finished step. Returns its entry, and requests to give up: those below a sibling of the same text that
        came earlier but has a later index. None if nothing can follow the step."""
        assert isinstance(self.ahead, Ahead)
        [step] = child.steps
        node = (*child.parent, child.index)
        if step.end is not StepEnd.DELIMITER or not step.token_ids or len(node) >= self.ahead.max_depth:
            return None
        thought = self._thoughts.get(child.parent, "")
        thought_tokens = self._thought_tokens.get(child.parent, 0) + step.thought.tokens
        if self._max_tokens(token_ids, thought_tokens) < 1 or boxed_answer(thought + step.text) is not None:
            return None
        key = child.parent, step.text if self.ahead.merges else child.index
        entry = self.steps.setdefault(key, _FinishedStep(node, token_ids, thought_tokens))
        entry.copies += 1
        outdated: Sequence[EngineRequest] = ()
        if node < entry.id:
            outdated, entry.children = entry.children, []
            entry.id, entry.token_ids, entry.thought_tokens = node, token_ids, thought_tokens
        return entry, outdated

    def request_below(self, step: _FinishedStep, lengths: Mapping[Until, StepLengths]) -> EngineRequest:
        """A request for the next child of ``step``, as the search would make it."""
        params = copy(self.params)
        params.max_tokens = self._max_tokens(step.token_ids, step.thought_tokens)
        if self.kind.sampling.temperature > 0:
            params.seed = branch_seed(self.ahead.seed, step.id, step.first + len(step.children))
        growth = lengths[Until(self.kind.stop_condition)].expected(params.max_tokens)
        return EngineRequest.written_ahead(self.search_id, step.token_ids, params, self.kind.cache_salt, growth)

    def _max_tokens(self, token_ids: Sequence[int], thought_tokens: int) -> int:
        if isinstance(self.ahead, AheadSamples):
            return self.ahead.tokens
        path_tokens = self.ahead.path_tokens + thought_tokens
        longest = min(path_tokens, self.ahead.context_tokens or path_tokens)
        return min(self.ahead.step_tokens, longest - len(token_ids))


class WriteAhead:
    """The children that one replica writes ahead for its searches, until they are asked for or given up.

    The queue asks it for the next one when the engine has room. Use from one event loop.
    """

    def __init__(
        self,
        queue: RequestQueue,
        setting: WriteAheadSetting,
        lengths: Mapping[Until, StepLengths],
        abort: Callable[[Sequence[EngineRequest]], None],
        device: Device = CPU,
    ) -> None:
        """
        Args:
            lengths: of the steps and solutions that the engine wrote.
            abort: aborts ended requests at the engine and discards what they have written.
        """
        self._device = device
        self._queue = queue
        self.setting = setting
        self._lengths = lengths
        self._abort = abort
        self._searches: dict[str, SearchAhead] = {}
        self._wanted: list[tuple[float, int, _Round, _FinishedStep]] = []
        """Heap of children to begin: (sibling fraction, arrival number, round, parent step). Entries of
        rounds that are over are dropped when they come first, or when there are too many."""
        self._prune_above = PRUNE_ABOVE
        self._numbers = count()
        self._turn_s = dict.fromkeys(StopCondition, 0.0)
        """Moving averages of the time from the end of a search's call to its next one. A turn of a search for single
        steps says nothing of a vote's, which ends with the rewards of whole solutions or with none."""
        self.call_s = 0.0
        """Moving average of the time of a call for single steps."""
        self._begun = self._adopted = self._adopted_finished = self._unused_tokens = 0
        queue.ahead = self

    @property
    def extent(self) -> float:
        """Children to begin, as a multiple of those that a step may expect; 0: none."""
        if not isinstance(self.setting, str):
            return self.setting
        device, turn_s = self._device, self._turn_s[StopCondition.STEP]
        if self.setting == "off" or turn_s < device.least_turn_s:
            return 0.0
        share = min(1.0, turn_s / self.call_s) if self.call_s else 0.0
        return device.least_extent + (device.most_extent - device.least_extent) * share

    @property
    def has_time(self) -> bool:
        """Whether the next child may be begun beside the requested branches."""
        if (entry := self._next) is None:
            return False
        _, _, owner, _ = entry
        demand = self._queue.demand - (self._queue.demand_of(owner.search_id) if owner.root else 0)
        return demand <= self._device.beside

    @property
    def counts(self) -> dict[str, int]:
        """Children begun; those that their search asked for, and how many of them were finished by then; tokens that
        nobody asked for."""
        return {
            "ahead_begun": self._begun,
            "ahead_adopted": self._adopted,
            "ahead_adopted_finished": self._adopted_finished,
            "ahead_unused_tokens": self._unused_tokens,
        }

    def check_integrity(self) -> list[str]:
        """Leak check of an idle engine: a sentence for each search with requests that were begun and not aborted."""
        begun = (search_id for search_id, search in self._searches.items() if search.has_begun)
        return [f"requests written ahead for search {search_id} were not aborted" for search_id in begun]

    @contextmanager
    def call(self, request: ExpandRequest, params: "SamplingParams") -> Iterator["SearchAhead | None"]:
        """Context of one call; None if nothing is written ahead for it. If the call is not completed, everything that
        was written ahead for its search is given up.

        Args:
            params: parameters of every branch but for seed and length.
        """
        no_steps = self.setting == "auto" and math.isinf(self._device.least_turn_s)
        if request.ahead is None or self.setting == "off" or (no_steps and isinstance(request.ahead, Ahead)):
            if (known := self._searches.get(request.search_id)) is not None:
                self._forget(known)  # it asks for other children now
            yield None
            return
        loop, began, kind = asyncio.get_running_loop(), time.monotonic(), request.stop_condition
        search = self._searches.setdefault(request.search_id, SearchAhead(self, request.search_id))
        if search.call_ended is not None:
            self._turn_s[kind] = _averaged(self._turn_s[kind], began - search.call_ended)
        search.begins(_Round(request, request.ahead, params))
        try:
            yield search
        except BaseException:
            search.close()
            # A search that has its answer may leave its last call before the end. It asks for its tokens afterwards.
            search.ended(loop.call_later(LEAST_LINGER_S, self._forget, search))
            raise
        if kind is StopCondition.STEP:
            self.call_s = _averaged(self.call_s, time.monotonic() - began)
        linger_s = min(max(LINGER_TURNS * self._turn_s[kind], LEAST_LINGER_S), MOST_LINGER_S)
        search.ended(loop.call_later(linger_s, self._forget, search))

    @property
    def waits(self) -> bool:
        """Whether there are children to begin."""
        return bool(self._wanted)

    @property
    def _next(self) -> "tuple[float, int, _Round, _FinishedStep] | None":
        """The first child to begin; drops those before it that are not wanted any more."""
        while self._wanted:
            _, _, owner, step = self._wanted[0]
            if not owner.over and len(step.children) < self._number(owner, step):
                return self._wanted[0]
            heapq.heappop(self._wanted)
        return None

    def next_request(self) -> EngineRequest | None:
        """The child to begin next. Called by the queue, which starts it, or ends it if there is no room."""
        if (entry := self._next) is None:
            return None
        heapq.heappop(self._wanted)
        _, _, owner, step = entry
        request = owner.request_below(step, self._lengths)
        request.on_discard = partial(self._count_unused, owner.search_id)
        step.children.append(request)
        self._begun += 1
        if owner.root is not None:
            self.want(owner, step)
        return request

    def want(self, owner: _Round, step: _FinishedStep) -> None:
        """Queues the children of a finished step that were not begun yet."""
        number = self._number(owner, step)
        wanted = range(len(step.children), number)
        if owner.root is not None:
            wanted = wanted[:1]  # The next one is queued when this one is begun.
        for index in wanted:
            share = index / number + (owner.root is not None)  # Steps first: they are needed soon, and soon done.
            heapq.heappush(self._wanted, (share, next(self._numbers), owner, step))
        if len(self._wanted) > self._prune_above:
            # Under steady load none of them is ever taken.
            self._wanted = [entry for entry in self._wanted if not entry[2].over]
            heapq.heapify(self._wanted)
            self._prune_above = max(PRUNE_ABOVE, 2 * len(self._wanted))
        self._queue.wake()

    def adopt(self, request: EngineRequest) -> None:
        """Makes a request that was written ahead one of a call."""
        self._adopted += 1
        self._adopted_finished += request.ending is Ending.FINISHED
        self._queue.adopt(request)

    def give_up(self, requests: Sequence[EngineRequest]) -> None:
        """Ends requests that were written ahead. Also called by the queue, when demand needs their place."""
        self._abort(self._queue.drop(requests))

    def _number(self, owner: _Round, step: _FinishedStep) -> int:
        """The number of children of a step to write ahead."""
        if isinstance(owner.ahead, AheadSamples):
            return owner.ahead.number
        expected = self.extent * owner.ahead.children * step.copies
        return min(owner.ahead.most_children, math.ceil(expected))

    async def release(self, search_id: str, aborted: Callable[[], Awaitable[None]]) -> int:
        """Gives up everything that was written ahead for a search, which has ended. Returns its tokens that were not
        reported to the search yet. ``aborted`` waits until the aborts have been sent to the engine."""
        if (search := self._searches.get(search_id)) is None:
            return 0
        search.close()
        await aborted()
        self._forget(search)
        return search.take_unused_tokens()

    def _forget(self, search: "SearchAhead") -> None:
        if self._searches.get(search.search_id) is search:
            del self._searches[search.search_id]
        search.close()

    def _count_unused(self, search_id: str, output: Any) -> None:
        tokens = len(output.outputs[0].token_ids)
        self._unused_tokens += tokens
        if (search := self._searches.get(search_id)) is not None:
            search.unused_tokens += tokens


class SearchAhead:
    """What is written ahead for one search."""

    def __init__(self, owner: WriteAhead, search_id: str) -> None:
        self.search_id = search_id
        self.unused_tokens = 0
        """Tokens given up that were not reported to the search yet."""
        self.call_ended: float | None = None
        """Time when its last call ended; None during a call."""
        self._owner = owner
        self._before: _Round | None = None
        """The round of the call before this one, until its rest is given up."""
        self._round: _Round | None = None
        """The round of the newest call."""
        self._by_id: dict[NodeId, _FinishedStep] = {}
        """The steps of ``_before`` below which this call's branches may have been begun."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it has requests that were begun."""
        rounds = [each for each in (self._before, self._round) if each is not None]
        return any(step.children for each in rounds for step in each.steps.values())

    def begins(self, newest: _Round) -> None:
        """A call of the search begins."""
        self._stop_timer()
        self.call_ended = None
        self.give_up_rest()
        self._before, self._round = self._round, newest
        if self._before is not None and self._before.kind == newest.kind:
            self._before.hand_on(newest)
            self._by_id = {step.id: step for step in self._before.steps.values()}
        if newest.root is not None:
            self._owner.want(newest, newest.root)

    def ended(self, timer: asyncio.TimerHandle) -> None:
        """A call has ended. ``timer`` runs until the search is forgotten."""
        self._stop_timer()
        self.call_ended = time.monotonic()
        self._timer = timer

    def close(self) -> None:
        """Gives up everything."""
        self._stop_timer()
        self.give_up_rest()
        self._before, self._round = self._round, None
        self.give_up_rest()

    def adopt(
        self, parent: NodeId, index: int, token_ids: Sequence[int], params: "SamplingParams"
    ) -> EngineRequest | None:
        """The request of a branch that was begun before it was asked for. None if there is none that writes what this
        branch would.

        Args:
            token_ids: the branch's prefix.
            params: its parameters, with seed and length.
        """
        step = self._by_id.get(parent)
        if step is None or not 0 <= index - step.first < len(step.children) or step.token_ids != token_ids:
            return None
        request = step.children[index - step.first]
        same = request.params.seed == params.seed and request.params.max_tokens == params.max_tokens
        if not same or request.ending not in (None, Ending.FINISHED) or not request.ahead:
            return None
        self._owner.adopt(request)
        return request

    def give_up_rest(self) -> None:
        """Gives up what was written ahead of the newest call and was not adopted."""
        before, self._before, self._by_id = self._before, None, {}
        if before is not None:
            before.over = True
            left = [request for step in before.steps.values() for request in step.children if request.ahead]
            self._owner.give_up(left)

    def wrote(self, written: Iterable[tuple[Child, tuple[int, ...]]]) -> None:
        """Takes note of finished steps, each with the token ids of its whole path: their children may be begun."""
        if (owner := self._round) is None or owner.root is not None or not self._owner.extent:
            return
        for child, token_ids in written:
            if (added := owner.add(child, token_ids)) is not None:
                step, outdated = added
                self._owner.give_up(outdated)
                self._owner.want(owner, step)

    def samples_at_last(self) -> int:
        """The number of solutions of later rounds that were begun. Called when the last ones of the call have come: no
        more are begun before the next call, which may never come."""
        if (newest := self._round) is None or newest.root is None:
            return 0
        newest.over = True
        return sum(request.ending in (None, Ending.FINISHED) for request in newest.root.children)

    def take_unused_tokens(self) -> int:
        """The number of tokens that were given up since the last call of this method."""
        tokens, self.unused_tokens = self.unused_tokens, 0
        return tokens

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _averaged(average: float, newest: float) -> float:
    return average + WEIGHT * (newest - average) if average else newest
