"""All attacks of `benchmarks.attacks` at once, in random order, beside two innocent tenants.

Nobody else's request fails or waits for long, no engine is replaced but by the tests' own poison, and afterwards
memory, slots, queues and ledgers are as before.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import pytest

from benchmarks.attacks.catalog import ATTACKS, Attack, Told, World
from benchmarks.attacks.connections import Endpoint
from benchmarks.attacks.watch import engine_processes, memory_mb
from tests.faults.poison import AT_ONCE, SCORED, Poison
from tests.faults.processes import assert_none_unused, shared_memory
from tests.faults.variants import Variant, read_step_by_step
from tests.serve.application import Application, problems, request, until

MAX_WAIT_S = 10.0
"""Longest wait of an innocent request, but for the time in which a replaced engine starts."""
LONG_S = 300.0
"""From this length on the attacks have a reward model of their own that reads paths step by step, and poison."""
ROUND_S = 45.0
"""Longest time for which the attacks of a round go on; then they are cancelled."""
SPREAD_S = 2.0
"""All attacks of a round begin within this time."""
POISON_EVERY_S = 180.0
MAX_GROWTH = 0.05
"""Share by which the memory of a role may have grown."""
FREE_MB = 64
"""Growth below this is that of the allocator."""
FREED_S = 60.0
SMALL = {"strategy": "beam_search", "n": 4, "m": 2}
PAUSE_S = 0.3
LOOK_EVERY_S = 1.0
WARM_UP_S = 10.0
"""Time of attacks before memory is measured, which fills KV memory and caches; in the long form ten times as much."""


class Innocent(NamedTuple):
    """One request of a tenant that attacks nobody."""

    began: float
    """Monotonic seconds."""
    seconds: float
    answer: str

    def __str__(self) -> str:
        return f"{self.answer} after {self.seconds:.1f} s"


class Replacement(NamedTuple):
    """Time in which engines were missing, monotonic seconds."""

    began: float
    ended: float
    engines: int
    """Number of engines that were gone."""


class Watch:
    """Looks for engines that are gone, and for those in their place."""

    def __init__(self, engines: Set[Hashable]) -> None:
        """``engines``: those that are there."""
        self._known = engines
        self._number = len(engines)
        self._replaced: list[Replacement] = []
        self._missing: set[Hashable] = set()
        self._since = 0.0

    async def look(self) -> None:
        """Looks again and again until it is cancelled."""
        while True:
            self.once(await asyncio.to_thread(engine_processes), time.monotonic())
            await asyncio.sleep(LOOK_EVERY_S)

    def once(self, now: Set[Hashable], at: float) -> None:
        """Notes the engines that are gone ``at`` a time, and the end of a replacement once there are as many again."""
        gone = self._known - now
        if gone and not self._missing:
            self._since = at - LOOK_EVERY_S
        self._missing |= gone
        self._known = now
        if self._missing and len(now) >= self._number:
            self._replaced.append(Replacement(self._since, at, len(self._missing)))
            self._missing = set()

    def end(self) -> list[Replacement]:
        """All replacements; one that is under way goes on for ever."""
        under_way = [Replacement(self._since, float("inf"), len(self._missing))] if self._missing else []
        return [*self._replaced, *under_way]


class Storm(NamedTuple):
    """What came of a time of attacks."""

    innocent: list[Innocent]
    told: dict[str, Told]
    """What each attack got."""
    replaced: list[Replacement]

    @property
    def failed(self) -> list[Innocent]:
        return [each for each in self.innocent if each.answer != "200"]

    @property
    def late(self) -> list[Innocent]:
        """Innocent requests that waited for too long, although all engines were there."""
        return [each for each in self.innocent if each.seconds > MAX_WAIT_S and not self._during_a_start(each)]

    @property
    def engines_replaced(self) -> int:
        return sum(each.engines for each in self.replaced)

    def _during_a_start(self, each: Innocent) -> bool:
        return any(each.began < start.ended and each.began + each.seconds > start.began for start in self.replaced)

    def report(self) -> str:
        waits = sorted(each.seconds for each in self.innocent)
        lines = [f"{name}: {dict(told)}" for name, told in sorted(self.told.items())]
        lines += [f"replaced: {each}" for each in self.replaced]
        return "\n".join([*lines, f"{len(waits)} innocent requests, the longest waits {waits[-5:]}"])


async def storm(
    attacks: Sequence[Attack], world: World, tenants: Sequence[Endpoint], seconds: float, rng: random.Random
) -> Storm:
    """Sends all attacks at once, again and again, in random order, beside the requests of the tenants."""
    watch, innocent = Watch(engine_processes()), list[Innocent]()
    told = {attack.name: Told() for attack in attacks}
    over = asyncio.Event()
    tenancies = [asyncio.create_task(_ask(tenant, 90 + index, innocent, over)) for index, tenant in enumerate(tenants)]
    watching = asyncio.create_task(watch.look())
    ends_at = time.monotonic() + seconds
    poisoned_at = float("-inf")
    while (left := ends_at - time.monotonic()) > 0:
        round_ = rng.sample(attacks, len(attacks))
        if time.monotonic() - poisoned_at < POISON_EVERY_S:
            round_ = [attack for attack in round_ if attack.name != "A2"]
        else:
            poisoned_at = time.monotonic()
        sent = {attack.name: asyncio.create_task(_begin(attack, world, rng)) for attack in round_}
        await asyncio.wait(sent.values(), timeout=min(ROUND_S, left))
        for task in sent.values():
            task.cancel()
        for name, got in zip(sent, await asyncio.gather(*sent.values(), return_exceptions=True), strict=True):
            told[name].update(got if isinstance(got, Counter) else [f"cut off: {type(got).__name__}"])
    over.set()
    await asyncio.gather(*tenancies)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    watch.once(engine_processes(), time.monotonic())
    return Storm(innocent, told, watch.end())


async def _begin(attack: Attack, world: World, rng: random.Random) -> Told:
    await asyncio.sleep(rng.uniform(0, SPREAD_S))
    first, second = rng.sample(world.attackers, 2)
    return await attack.send(replace(world, attackers=(first, second)), rng)


async def _ask(tenant: Endpoint, seed: int, outcomes: list[Innocent], over: asyncio.Event) -> None:
    """Sends small searches, one after the other, until it is over."""
    questions = problems(200, seed=seed)
    number = 0
    while not over.is_set():
        body = request(questions[number % len(questions)], number, search=SMALL)
        began = time.monotonic()
        answer = await tenant.ask("POST", "/v1/chat/completions", body)
        outcomes.append(Innocent(began, time.monotonic() - began, str(answer)))
        number += 1
        await asyncio.sleep(PAUSE_S)


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float:
    """How long the attacks go on."""
    given: float = pytestconfig.getoption("--attack-seconds")
    if not given:
        pytest.skip("only with --attack-seconds: on two cores innocent requests still wait for longer than they may")
    return given


@pytest.fixture
def per_step(seconds: float, application: Application, request: pytest.FixtureRequest) -> Iterator[Variant]:
    """A controller whose reward model reads a path once for each of its steps: a function where time is short."""
    if seconds < LONG_S:
        yield request.getfixturevalue("with_reward_function")
        return
    with read_step_by_step(application) as variant:
        yield variant


def test_all_attacks_at_once_cost_nobody_else_an_answer(
    seconds: float,
    whole: Application,
    keyless: Variant,
    per_step: Variant,
    poison: Poison,
) -> None:
    before = shared_memory()
    attackers = [Endpoint.of(whole.url, key) for key in whole.small_keys]
    world = World(
        attackers=(attackers[0], attackers[1]),
        anonymous=Endpoint.of(keyless.url),
        labels=Endpoint.of(per_step.url, whole.small_keys[0]),
        store=whole.config.controller.store.path,
        poison=AT_ONCE + SCORED if seconds >= LONG_S else None,
    )
    tenants = [Endpoint.of(whole.url, key) for key in (whole.key, whole.other_key)]
    attacks = [attack for attack in ATTACKS.values() if attack.at(world)]
    poisoned = poison.ended.total()
    warm_up_s = WARM_UP_S * (10 if seconds >= LONG_S else 1)
    memory: dict[str, int] = {}
    for seed, storm_s in enumerate((warm_up_s, seconds)):
        with poison.armed() if world.poison else nullcontext():
            found = asyncio.run(storm(attacks, world, tenants, storm_s, random.Random(seed)))
        print(found.report())
        allowed = poison.ended.total() - poisoned
        assert found.innocent
        assert not found.failed, f"{len(found.failed)} of {len(found.innocent)}: {[*map(str, found.failed[:8])]}"
        assert not found.late, f"{len(found.late)} of {len(found.innocent)}: {[*map(str, found.late[:8])]}"
        assert found.engines_replaced <= allowed, f"poison ended {allowed} engines: {found.replaced}"
        whole.wait_until_whole()
        for variant in (keyless, per_step):
            until(variant.is_idle, f"nothing is left at {variant.prefix}", 60.0)
        memory = memory or memory_mb()
    for engine in (*whole.status()["generator"], *whole.status()["prm"]):
        assert (engine["running"], engine["waiting"], engine.get("reserved_blocks", 0)) == (0, 0, 0)
    freed_by = time.monotonic() + FREED_S
    while growth := grown(memory, memory_mb()):
        assert time.monotonic() < freed_by, f"memory has grown by {growth} MB, from {memory}"
        time.sleep(2.0)
    assert_none_unused(before)


def grown(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """The roles whose memory has grown by more than they may, with the MB by which they have."""
    growth = {role: now.get(role, 0) - size for role, size in before.items()}
    return {role: more for role, more in growth.items() if more > max(FREE_MB, MAX_GROWTH * before[role])}


def test_engines_that_are_replaced_are_noticed() -> None:
    watch = Watch({"first", "second"})
    for at, now in enumerate(({"first", "second"}, {"first"}, {"first", "third"})):
        watch.once(now, float(at))
    assert watch.end() == [Replacement(0.0, 2.0, 1)]
    watch.once({"third"}, 3.0)
    assert watch.end()[1:] == [Replacement(2.0, float("inf"), 1)]


def test_a_late_or_failed_request_is_told_apart_from_one_beside_a_start() -> None:
    start = Replacement(100.0, 130.0, 1)
    requests = [
        Innocent(10.0, 11.0, "200"),
        Innocent(95.0, 30.0, "200"),
        Innocent(200.0, 1.0, "503 generator_unavailable"),
    ]
    found = Storm(requests, {}, [start])
    assert found.late == requests[:1]
    assert found.failed == requests[2:]
    assert grown({"http proxy": 200, "controller replica": 2000}, {"http proxy": 265, "controller replica": 2090}) == {
        "http proxy": 65
    }
