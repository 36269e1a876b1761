"""Requests that end engines: suspects are tried apart, the innocent are answered, the harmful are found and refused."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError

from deployments.calls import pool as pools
from deployments.calls.envelope import Envelope
from deployments.calls.handles import HandleGenerator, HandleScorer
from deployments.calls.pool import Pool
from deployments.calls.serve_calls import Retries
from deployments.service import suspects as remembered
from deployments.service.suspects import Suspects, digest_of
from search.errors import GeneratorError, HarmfulRequest, ScorerError
from search.ports import (
    Ahead,
    Branch,
    Child,
    ChildGroup,
    ExpandItem,
    ExpandRequest,
    Lane,
    Sampling,
    ScoreItem,
    ScoreRequest,
    StopCondition,
)
from search.tree import Step, StepEnd

RETRIES = Retries(attempts=3, backoff_s=1e-4, backoff_max_s=1e-3, silence_s=5.0)
TURNS = 3
"""Turns of the event loop that an engine needs for a call."""


class Engine:
    """A replica's engine: what is in its batch, and what waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batch: dict[object, Sent] = {}
        self.alone: list[object] = []
        self.dead = asyncio.Event()
        self.changed = asyncio.Event()

    def may_begin(self, call: object, request: "Sent") -> bool:
        if request.alone:
            return self.alone[0] is call and not self.batch
        return not self.alone

    async def work(self, request: "Sent", deadly: bool) -> None:
        """Works on a request. Raises ActorDiedError when the engine dies."""
        call = object()
        if request.alone:
            self.alone.append(call)
        try:
            while not self.may_begin(call, request) and not self.dead.is_set():
                self.changed.clear()
                await self.changed.wait()
            if not self.dead.is_set():
                self.batch[call] = request
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            if deadly and not self.dead.is_set():
                self.words = frozenset(each.search_id for each in self.batch.values())
                self.alone_at_death = len(self.batch) == 1
                self.dead.set()
            if self.dead.is_set():
                raise ActorDiedError
        finally:
            self.batch.pop(call, None)
            if request.alone:
                self.alone.remove(call)
            self.changed.set()


class Cluster:
    """A pool of engines behind a handle. An engine that died is replaced at once, or only by ``replace``."""

    def __init__(self, size: int = 2, deadly: Sequence[str] = (), replaces: bool = True) -> None:
        self.deadly = set(deadly)
        self.replaces = replaces
        self.killed_by: Counter[str] = Counter()
        self.without_words: set[str] = set()
        self.engines = [Engine(f"{number:02}") for number in range(size)]
        self.requests: list[Sent] = []
        self.silent = False
        self.refuses = False
        """Whether Serve itself sends a call to another replica if the one that it chose is gone."""
        self._next = 0
        self._all = list(self.engines)

    def options(self, **_: object) -> "Cluster":
        return self

    def replicas(self) -> dict[str, bool]:
        return {each.name: not each.dead.is_set() for each in self.engines}

    def replace(self) -> None:
        self.engines.append(Engine(f"{len(self._all):02}"))
        self._all.append(self.engines[-1])

    async def last_words_of(self, replica: str) -> frozenset[str] | None:
        [engine] = [each for each in self._all if each.name == replica]
        return None if replica in self.without_words else getattr(engine, "words", None)

    def remote(self, asked: Any, envelope: Envelope) -> Any:
        request = Sent(asked, envelope)
        self.requests.append(request)
        alive = [each for each in self.engines if each.name not in request.avoid] or self.engines
        alive = [each for each in alive if not (self.refuses and each.dead.is_set())]
        self._next += 1
        engine = min(alive, key=lambda each: each.name) if request.alone else alive[self._next % len(alive)]
        return Response(self._answer(engine, request), engine.name)

    async def _answer(self, engine: Engine, request: "Sent") -> AsyncIterator[Any]:
        if self.silent:
            await asyncio.Event().wait()
        try:
            await engine.work(request, request.search_id in self.deadly)
        except ActorDiedError:
            if engine in self.engines:
                self.killed_by[request.search_id] += 1
                self.engines.remove(engine)
                if self.replaces:
                    self.replace()
            raise
        if isinstance(request.asked, ScoreRequest):
            yield [[0.5]]
        else:
            [item] = request.asked.expansions
            step = Step((7,), "x", StepEnd.DELIMITER)
            yield ChildGroup(tuple(Child((), branch.index, (step,), 0) for branch in item.branches))


class Sent(NamedTuple):
    """A request as it was sent."""

    asked: Any
    envelope: Envelope

    @property
    def search_id(self) -> str:
        return str(self.asked.search_id)

    @property
    def alone(self) -> bool:
        return self.envelope.alone

    @property
    def avoid(self) -> tuple[str, ...]:
        return self.envelope.avoid


class Response:
    def __init__(self, items: AsyncIterator[Any], replica: str) -> None:
        self._items = items
        self._replica_result_future = asyncio.get_running_loop().create_future()
        actor_id = SimpleNamespace(hex=lambda: replica)
        self._replica_result_future.set_result(SimpleNamespace(_actor_id=actor_id, cancel=lambda: None))

    async def __anext__(self) -> Any:
        return await self._items.__anext__()

    def __await__(self) -> Any:
        return self._items.__anext__().__await__()

    def cancel(self) -> None: ...


def of(cluster: Cluster, suspects: Suspects, size: int | None = None) -> Pool:
    size = len(cluster.engines) if size is None else size
    return Pool("pool", suspects, cluster.replicas, size, cluster.last_words_of)


def scores(search_id: str, deadline_s: float = 30.0) -> ScoreRequest:
    return ScoreRequest(search_id, "q", (ScoreItem(("a",)),), deadline_s)


def expands(search_id: str, ahead: Ahead | None = None) -> ExpandRequest:
    parts = (ExpandItem((), (1, 2), (Branch(0, 100, 8), Branch(1, 101, 8))),)
    return ExpandRequest(search_id, parts, Sampling(), StopCondition.STEP, Lane.DEMAND, 30.0, ahead=ahead)


def asked(name: str) -> Callable[[str], bytes]:
    return lambda owner: name.encode()


async def scored(scorer: HandleScorer, suspects: Suspects, name: str, calls: int = 1) -> str:
    """How a request of some calls ends."""
    try:
        with suspects.request(name, "owner", asked(name)):
            for _ in range(calls):
                await scorer.score(scores(name))
    except (HarmfulRequest, ScorerError) as error:
        return type(error).__name__
    return "answered"


async def written(generator: HandleGenerator, request: ExpandRequest) -> None:
    async for _ in generator.expand(request):
        pass


async def outcome(cluster: Cluster, names: Sequence[str], calls: int = 2) -> tuple[dict[str, str], Suspects]:
    """How requests that are sent together end."""
    suspects = Suspects()
    scorer = HandleScorer(cluster, RETRIES, 15.0, of(cluster, suspects))
    ends = await asyncio.gather(*(scored(scorer, suspects, name, calls) for name in names))
    assert suspects.check_integrity() == []
    return dict(zip(names, ends, strict=True)), suspects


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 4),
    innocent=st.integers(0, 8),
    harmful=st.integers(0, 3),
    calls=st.integers(1, 3),
    wordless=st.booleans(),
    data=st.data(),
)
def test_the_harmful_end_two_engines_each_and_the_innocent_are_answered(
    size: int, innocent: int, harmful: int, calls: int, wordless: bool, data: st.DataObject
) -> None:
    good, bad = [f"good {number}" for number in range(innocent)], [f"bad {number}" for number in range(harmful)]
    names = data.draw(st.permutations([*good, *bad]))

    async def run() -> None:
        cluster = Cluster(size, bad)
        if wordless:
            cluster.without_words = {f"{number:02}" for number in range(100)}
        ends, _ = await outcome(cluster, names, calls)
        assert ends == {name: "HarmfulRequest" if name in bad else "answered" for name in names}
        deaths = len(cluster._all) - size
        assert deaths <= 2 * harmful
        for engine in cluster._all:
            alone = [each for each in engine.batch.values() if each.alone]
            assert not alone

    asyncio.run(run())


async def test_no_innocent_call_shares_an_engine_with_one_that_is_tried_apart() -> None:
    cluster = Cluster(2, ["bad"])
    begin = Engine.may_begin
    shared: list[int] = []

    def watched(engine: Engine, call: object, request: Any) -> bool:
        if begun := begin(engine, call, request):
            alone = request.alone or any(each.alone for each in engine.batch.values())
            shared.extend([1] if alone and engine.batch else [])
        return begun

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "may_begin", watched)
        ends, _ = await outcome(cluster, ["bad", *(f"good {number}" for number in range(6))], 4)
    assert Counter(ends.values()) == {"answered": 6, "HarmfulRequest": 1}
    assert any(each.alone for each in cluster.requests)
    assert shared == []


async def test_a_call_that_only_waited_is_no_suspect_and_costs_no_attempt() -> None:
    cluster = Cluster(1)
    cluster.engines[0].words = frozenset({"another"})  # type: ignore[attr-defined]
    suspects = Suspects()
    scorer = HandleScorer(cluster, RETRIES._replace(attempts=1), 15.0, of(cluster, suspects))
    cluster.engines[0].dead.set()
    assert await scored(scorer, suspects, "waits") == "answered"
    assert [each.alone for each in cluster.requests] == [False, False]


async def test_branches_that_only_waited_cost_no_attempt() -> None:
    cluster = Cluster(1)
    cluster.engines[0].words = frozenset({"another"})  # type: ignore[attr-defined]
    cluster.engines[0].dead.set()
    suspects = Suspects()
    generator = HandleGenerator(cluster, RETRIES._replace(attempts=1), of(cluster, suspects))
    with suspects.request("waits", "owner", asked("waits")):
        await written(generator, expands("waits"))
    assert [each.alone for each in cluster.requests] == [False, False]
    assert [each.avoid for each in cluster.requests] == [(), ("00",)]


async def test_a_suspect_is_cleared_by_its_call_and_goes_on_with_others() -> None:
    cluster = Cluster(2, ["bad"])
    ends, suspects = await outcome(cluster, ["bad", "good", "other"], 4)
    assert ends["good"] == "answered"
    mine = [each.alone for each in cluster.requests if each.search_id in ("good", "other")]
    assert not mine[-1]
    assert not suspects._suspected


async def test_the_second_shared_death_keeps_a_request_apart() -> None:
    """Perhaps it ends engines only in company, where it would end one after the other."""
    suspects = Suspects()
    with suspects.request("s", "owner", asked("s")):
        standing = suspects.standing("s", "pool")
        for _ in range(2):
            suspects.blame("s", standing)
            assert standing.apart
            standing.clear()
        assert standing.apart
    with suspects.request("again", "owner", asked("s")):
        assert suspects.standing("again", "pool").apart, "also when it is sent again"
    with suspects.request("once more", "owner", asked("s")):
        assert not suspects.standing("once more", "pool").apart, "until it has ended well apart"


async def test_a_suspect_whose_client_leaves_begins_apart_the_next_time() -> None:
    suspects = Suspects()
    gone = suspects.request("s", "owner", asked("s"))
    gone.__enter__()
    suspects.blame("s", suspects.standing("s", "pool"))
    assert not gone.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    cluster = Cluster(2, ["again"])
    scorer = HandleScorer(cluster, RETRIES, 15.0, of(cluster, suspects))
    with pytest.raises(HarmfulRequest), suspects.request("again", "owner", asked("s")):
        await scorer.score(scores("again"))
    assert cluster.killed_by.total() == 1


async def test_a_request_whose_client_left_before_the_engine_died_begins_apart_the_next_time() -> None:
    suspects = Suspects()
    cluster = Cluster(1)
    scorer = HandleScorer(cluster, RETRIES, 15.0, of(cluster, suspects))
    for name in ("left", "left too"):
        gone = suspects.request(name, "owner", asked(name))
        gone.__enter__()
        gone.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    cluster.engines[0].words = frozenset({"left"})  # type: ignore[attr-defined]
    cluster.engines[0].dead.set()
    assert await scored(scorer, suspects, "another") == "answered", "its call finds the engine dead"
    for name, apart in (("left", True), ("left too", False)):
        with suspects.request("again", "owner", asked(name)):
            assert suspects.standing("again", "pool").apart == apart


async def test_what_a_harmful_request_asked_is_refused_for_everybody_who_asks_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found: list[int] = []
    suspects = Suspects(lambda: found.append(1))
    cluster = Cluster(2, ["bad"])
    scorer = HandleScorer(cluster, RETRIES, 15.0, of(cluster, suspects))
    with caplog.at_level(logging.WARNING, "banyan.suspects"):
        assert await scored(scorer, suspects, "bad") == "HarmfulRequest"
    sent = len(cluster.requests)
    with pytest.raises(HarmfulRequest), suspects.request("another seed", "owner", asked("bad")):
        raise AssertionError("it began")
    assert len(cluster.requests) == sent
    assert found == [1]
    [record] = [each for each in caplog.records if each.name == "banyan.suspects"]
    assert "request bad crashed an engine twice" in record.getMessage()
    assert b"bad".hex() in record.getMessage()


async def test_copies_of_a_harmful_request_that_wait_for_their_turn_are_not_tried() -> None:
    names = [f"copy {number}" for number in range(4)]
    suspects = Suspects()
    cluster = Cluster(1, names)
    scorer = HandleScorer(cluster, RETRIES, 15.0, of(cluster, suspects))

    async def copy(name: str) -> None:
        with suspects.request(name, "owner", asked("the same")):
            await scorer.score(scores(name))

    ends = await asyncio.gather(*map(copy, names), return_exceptions=True)
    assert {type(each) for each in ends} == {HarmfulRequest}
    assert len(cluster._all) - 1 == 2


async def test_the_last_replica_of_several_is_spared_while_it_serves_others() -> None:
    cluster = Cluster(2, ["bad"], replaces=False)
    suspects = Suspects()
    pool = of(cluster, suspects)
    scorer = HandleScorer(cluster, RETRIES, 15.0, pool)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pools, "LOOK_EVERY_S", 0.001)
        with suspects.request("another", "owner", asked("another")):
            trying = asyncio.create_task(scored(scorer, suspects, "bad"))
            while not cluster.killed_by.total():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            assert not trying.done()
            assert len(cluster.requests) == 1
            cluster.replace()
            assert await trying == "HarmfulRequest"
    assert len(cluster.engines) == 1


async def test_an_idle_last_replica_is_not_spared() -> None:
    cluster = Cluster(2, ["bad"], replaces=False)
    suspects = Suspects()
    scorer = HandleScorer(cluster, RETRIES, 15.0, of(cluster, suspects))
    assert await scored(scorer, suspects, "bad") == "HarmfulRequest"


async def test_a_suspect_waits_for_a_replica_to_spare_until_its_deadline_only() -> None:
    cluster = Cluster(2, ["bad"], replaces=False)
    suspects = Suspects()
    pool = of(cluster, suspects)
    another = suspects.request("another", "owner", asked("another"))
    with another, suspects.request("bad", "owner", asked("bad")), pytest.raises(ScorerError):
        await HandleScorer(cluster, RETRIES, 15.0, pool).score(scores("bad", deadline_s=0.1))
    assert not pool._turn.locked()


async def test_a_silent_replica_makes_suspects_and_a_second_silence_alone_is_proof() -> None:
    cluster = Cluster(2)
    cluster.silent = True
    suspects = Suspects()
    generator = HandleGenerator(cluster, RETRIES._replace(silence_s=0.02), of(cluster, suspects))
    with suspects.request("s", "owner", asked("s")), pytest.raises(HarmfulRequest):
        await written(generator, expands("s"))
    assert [each.alone for each in cluster.requests] == [False, True]


AHEAD = Ahead(1, 2, 4, 64, 512, 8, True)


@pytest.mark.parametrize("listed", [False, True])
async def test_a_death_while_only_what_was_written_ahead_ran_makes_its_search_a_suspect(listed: bool) -> None:
    """Whether or not Serve has noticed it when the search goes on."""
    cluster = Cluster(2)
    suspects = Suspects()
    generator = HandleGenerator(cluster, RETRIES, of(cluster, suspects))
    with suspects.request("s", "owner", asked("s")), suspects.request("other", "owner", asked("other")):
        for name in ("s", "other"):
            await written(generator, expands(name, AHEAD))
        for engine in [*cluster.engines]:
            engine.words = frozenset({"s"})  # type: ignore[attr-defined]
            engine.dead.set()
            if not listed:
                cluster.engines.remove(engine)
            cluster.replace()
        cluster.refuses = listed
        for _ in range(2):
            for name in ("s", "other"):
                await written(generator, expands(name, AHEAD))
    of_s = [each for each in cluster.requests if each.search_id == "s"]
    assert [each.alone for each in of_s] == [False, True, False]
    assert [each.asked.ahead for each in of_s] == [AHEAD, None, None], "it is not written ahead for again"
    assert [(each.alone, each.asked.ahead) for each in cluster.requests if each.search_id == "other"] == [
        (False, AHEAD)
    ] * 3


async def test_the_same_branches_are_written_apart() -> None:
    cluster = Cluster(1, ["bad"])
    suspects = Suspects()
    generator = HandleGenerator(cluster, RETRIES, of(cluster, suspects))

    async def one(name: str) -> str:
        try:
            with suspects.request(name, "owner", asked(name)):
                await written(generator, expands(name))
        except (HarmfulRequest, GeneratorError) as error:
            return type(error).__name__
        return "answered"

    assert await asyncio.gather(one("bad"), one("good")) == ["HarmfulRequest", "answered"]
    first, again = [each for each in cluster.requests if each.search_id == "good"]
    assert again.alone
    assert again.asked.expansions == first.asked.expansions


def test_the_digest_is_of_the_owner_the_prompt_and_what_the_engine_does_with_it() -> None:
    digest = partial(digest_of, "owner", "search", [[1, 2], [3]])
    assert digest("schema") == digest("schema")
    others = [
        digest("another"),
        digest_of("other", "search", [[1, 2], [3]], "schema"),
        digest_of("owner", "score", [[1, 2], [3]], "schema"),
        digest_of("owner", "search", [[1], [2, 3]], "schema"),
    ]
    assert len({digest("schema"), *others}) == 5


def test_an_owner_with_many_harmful_requests_is_refused_and_nobody_else() -> None:
    suspects = Suspects()
    for number in range(remembered.MAX_HARMFUL):
        with suspects.request(f"search {number}", "harmful", asked(f"with a number: {number}")):
            suspects.found_harmful(f"search {number}")
    with pytest.raises(HarmfulRequest, match="8 requests of this client crashed an engine twice each"):
        suspects.check("harmful", asked("something else"))
    suspects.check("another", asked("something else"))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MAX_REMEMBERED", 3)
    suspects = Suspects()
    for number in range(10):
        with suspects.request(str(number), "owner", asked(str(number))):
            suspects.found_harmful(str(number))
    assert len(suspects._harmful) == 3
    with pytest.raises(HarmfulRequest):
        suspects.check("", asked("9"))
    suspects.check("", asked("0"))
