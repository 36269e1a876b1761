"""A small request beside each of fifteen attacks, over its time alone.

    python -m benchmarks.attacks
    python -m benchmarks.attacks --only B3 --only C7 --pairs 1
    python -m benchmarks.attacks --only A2 --poison

The application is as shipped, with LMCache, two generators, API keys with small limits for the attacker, and a store in
a temporary directory that keeps few searches, so that the oldest are removed all the time. Two further controllers
share its engines: one without keys, and one whose reward model reads a path once for each of its steps.

In each pair the small request is sent three times alone, then an attack begins, and it is sent at least three times
beside it, for ten seconds if the attack goes on that long. The pair's ratio is that of the two means, and the claim is
on the median of the pairs. An attack is cancelled a while after the last small request beside it. Then the application
has to be idle and whole again, with the engines that it had before. A2 needs ``--poison``: then engines have the
scheduler of `tests.faults.poison`, and the engines that it ends are not counted as replaced.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import uvloop
from rich.console import Console

from benchmarks.attacks.catalog import ATTACKS, Attack, Told, World
from benchmarks.attacks.connections import Endpoint
from benchmarks.attacks.watch import engine_processes, memory_mb
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig, ControllerUserConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment
from tests.faults.poison import AT_ONCE, ENGINE_ARGS, SCORED, Poison

MAX_RATIO = 3.0
CALLS = 3
"""Least number of small requests in each half of a pair."""
BESIDE_S = 10.0
SMALL = {"strategy": "beam_search", "n": 4, "m": 2}
METADATA = {f"a{index}": "a" * 500 for index in range(10)}
"""Makes the small request's body so long that a thread reads it (`deployments.admission.body_threads.INLINE_BYTES`)."""
ASKED = {"model": "banyan-arithmetic", "seed": 1, "search": SMALL, "metadata": METADATA}
ONSET_S = 0.3
"""From the begin of an attack to the first small request beside it."""
TIMEOUT_S = 120.0
"""Longest wait for a small request; a longer one counts as this."""
REST_S = 30.0
"""How long an attack may go on behind the last small request."""
WHOLE_S = 300.0
"""Longest wait until the application is idle and whole."""
LIMITS = {"operator": "operator", "small": "", "attacker": "places=16", "second": "places=16"}
"""Keys, and their limits in the syntax of the keys file. Without tokens a minute, which would end the attacks."""
console = Console(stderr=True)


class Half(NamedTuple):
    """Small requests, one after the other."""

    seconds: list[float]
    statuses: list[str]

    @property
    def mean(self) -> float:
        return statistics.mean(self.seconds)


class Pair(NamedTuple):
    alone: Half
    beside: Half
    told: Told
    """What the attack got."""
    memory_mb: dict[str, int]
    """Memory by role while the attack was under way."""
    whole_s: float | None
    """Seconds from the end of the attack until the application was idle and whole; None: not within `WHOLE_S`."""

    @property
    def ratio(self) -> float:
        return self.beside.mean / self.alone.mean


class SmallRequests:
    """Sends small searches, each of a new problem."""

    def __init__(self, seed: int) -> None:
        self._problems = draw_problems(Split.TEST, seed)

    async def half(self, at: Endpoint, beside: "asyncio.Future[Told] | None" = None) -> Half:
        """``beside``: the attack that is under way."""
        half = Half([], [])
        while len(half.seconds) < CALLS or (beside and not beside.done() and sum(half.seconds) < BESIDE_S):
            message = {"role": "user", "content": next(self._problems).text}
            body = {**ASKED, "messages": [message]}
            began = time.perf_counter()
            answer = await at.ask("POST", "/v1/chat/completions", body, timeout_s=TIMEOUT_S)
            half.seconds.append(time.perf_counter() - began)
            half.statuses.append(str(answer))
        return half


async def measure(
    attacks: Sequence[Attack],
    world: World,
    small: Endpoint,
    operator: Endpoint,
    engines: int,
    pairs: int,
    seed: int,
    poison: Poison,
) -> dict[str, Any]:
    """``poison``: counts the engines that died of it."""

    def ended_by_poison() -> int:
        return poison.ended.total()

    requests, rng = SmallRequests(seed), random.Random(seed)
    measured: dict[str, Any] = {}
    for attack in attacks:
        at = attack.at(world)
        if at is None:
            console.print(f"{attack.name}: not measured: this application has nothing of the kind")
            continue
        beside = at._replace(key=None if at.key is None else small.key)
        await requests.half(beside)
        memory, ended, replaced = memory_mb(), ended_by_poison(), 0
        done: list[Pair] = []
        while len(done) < pairs:
            before, poisoned_before = engine_processes(), ended_by_poison()
            done.append(await _pair(attack, world, requests, beside, operator, engines, rng))
            console.print(f"{attack.name}: {_line(done[-1])}")
            gone = len(before - engine_processes())
            replaced += max(0, gone - (ended_by_poison() - poisoned_before))
            if replaced or done[-1].whole_s is None:
                break
        ratio = statistics.median(pair.ratio for pair in done)
        console.print(f"{attack.name}, {attack.what}: {ratio:.2f}")
        measured[attack.name] = {
            "what": attack.what,
            "ratio": round(ratio, 2),
            "pairs": [_figures(pair) for pair in done],
            "engines_ended_by_poison": ended_by_poison() - ended,
            "engines_replaced": replaced,
            "memory_mb_before": memory,
            "memory_mb_after": memory_mb(),
        }
    return measured


async def _pair(
    attack: Attack,
    world: World,
    requests: SmallRequests,
    small: Endpoint,
    operator: Endpoint,
    engines: int,
    rng: random.Random,
) -> Pair:
    alone = await requests.half(small)
    sending = asyncio.ensure_future(attack.send(world, rng))
    await asyncio.sleep(ONSET_S)
    beside = await requests.half(small, sending)
    memory = memory_mb()
    await asyncio.wait([sending], timeout=REST_S)
    sending.cancel()
    [told] = await asyncio.gather(sending, return_exceptions=True)
    if isinstance(told, BaseException):
        told = Told([f"cut off: {type(told).__name__}"])
    return Pair(alone, beside, told, memory, await _until_whole(operator, engines))


async def _until_whole(operator: Endpoint, engines: int) -> float | None:
    """Waits until no search runs, nothing is left over, and all engines answer; returns the seconds."""
    began = time.perf_counter()
    while (waited := time.perf_counter() - began) < WHOLE_S:
        status = (await operator.ask("GET", "/v1/status", timeout_s=30.0)).json
        replicas = [*status.get("generator", ()), *status.get("prm", ())]
        if (
            status.get("searches") == 0
            and status.get("integrity") == []
            and len(replicas) == engines
            and not any("error" in each for each in replicas)
        ):
            return waited
        await asyncio.sleep(0.5)
    return None


def _figures(pair: Pair) -> dict[str, Any]:
    return {
        "ratio": round(pair.ratio, 2),
        "alone_s": [round(each, 3) for each in pair.alone.seconds],
        "beside_s": [round(each, 3) for each in pair.beside.seconds],
        "beside_statuses": pair.beside.statuses,
        "attack_got": dict(pair.told),
        "memory_mb_beside": pair.memory_mb,
        "whole_after_s": None if pair.whole_s is None else round(pair.whole_s, 1),
    }


def _line(pair: Pair) -> str:
    return f"{pair.ratio:.2f} ({pair.alone.mean:.2f} s, then {pair.beside.mean:.2f} s); got {dict(pair.told)}"


def claims_of(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """For each attack: the ratio, that no engine was replaced, and that all small requests were answered."""
    claims = []
    for name, each in measured.items():
        failed = sum(status != "200" for pair in each["pairs"] for status in pair["beside_statuses"])
        left = sum(pair["whole_after_s"] is None for pair in each["pairs"])
        replaced = each["engines_replaced"]
        ratio = each["ratio"]
        claims += [
            claim(f"{name}: beside over alone, median", ratio, f"<= {MAX_RATIO:g}", ratio <= MAX_RATIO),
            claim(f"{name}: engines replaced", replaced, 0, replaced == 0),
            claim(f"{name}: small requests that failed", failed, 0, failed == 0),
            claim(f"{name}: not whole afterwards", left, 0, left == 0),
        ]
    return claims


@contextmanager
def further_controllers(config: AppConfig, labels: str | None) -> Iterator[dict[str, str]]:
    """Controllers over the running application's engines; yields the path of each: one without keys, and with
    ``labels``, a family that reads a path once a step, one with such a reward model."""
    from ray import serve

    from deployments.admission.keys import read_records
    from deployments.controller import SearchController
    from deployments.engines.rewards import parse_prm
    from deployments.prm import ProcessRewardModel

    generator = serve.get_deployment_handle("Generator", "default")
    prm: Any = serve.get_deployment_handle("ProcessRewardModel", "default")
    keys = read_records(config.http.api_keys_file)
    http = config.http.model_copy(update={"api_keys_file": None})
    kept = config.controller.model_copy(update={"store": config.controller.store.model_copy(update={"path": None})})
    config = config.model_copy(update={"controller": kept})
    variants: dict[str, tuple[AppConfig, Any, Sequence[Any]]] = {
        "anonymous": (config.model_copy(update={"http": http}), prm, ()),
    }
    if labels is not None:
        # A turn a step takes more than the embedded models' context at the deepest path.
        context = {"max_model_len": 4096, "engine_args": {"hf_overrides": {"max_position_embeddings": 4096}}}
        family = parse_prm({"family": labels, "model": "embedded:generator", **context})
        bound = ProcessRewardModel.options(ray_actor_options={"num_cpus": 0}).bind(family)
        variants["labels"] = (config.model_copy(update={"prm": family}), bound, keys)
    for name, (settings, scorer, records) in variants.items():
        controller = SearchController.options(
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=256,
            user_config=ControllerUserConfig(keys=tuple(records)).model_dump(mode="json"),
        ).bind(settings, generator, scorer)
        serve.run(controller, name=name, route_prefix=f"/{name}")
    yield {name: f"/{name}" for name in variants}


def main(
    only: Annotated[list[str] | None, typer.Option(help="An attack; all by default.")] = None,
    pairs: Annotated[int, typer.Option(min=1, max=50)] = 3,
    labels: Annotated[
        str, typer.Option(help="Family of B6's reward model, of the embedded generator.")
    ] = "label_turns",
    poison: Annotated[bool, typer.Option(help="Send A2, too.")] = False,
    generators: Annotated[int, typer.Option(min=1, max=8)] = 2,
    seed: Annotated[int, typer.Option(min=0)] = 1,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    attacks = [ATTACKS[name] for name in only] if only else list(ATTACKS.values())
    wants = {attack.name for attack in attacks}
    with tempfile.TemporaryDirectory() as directory:
        store, keys_file = Path(directory) / "store", Path(directory) / "keys"
        deaths = Poison(Path(directory))
        keys = {name: f"{name}-key-{random.SystemRandom().getrandbits(128):032x}" for name in LIMITS}
        keys_file.write_text("".join(f"{keys[name]} {limits}\n" for name, limits in LIMITS.items()))
        engine_args: dict[str, Any] = {"engine_args": ENGINE_ARGS} if poison else {}
        settings = {
            "generator": {"replicas": {"min_replicas": generators, "max_replicas": generators}} | engine_args,
            "prm": engine_args,
            "controller": {"store": {"path": str(store), "searches_max": 20}},
            "http": {"api_keys_file": str(keys_file), "canary_every_s": 0},
        }
        config = AppConfig.model_validate(settings)
        with application(config) as url, further_controllers(config, labels if "B6" in wants else None) as paths:
            ends = {name: Endpoint.of(url, key) for name, key in keys.items()}
            world = World(
                attackers=(ends["attacker"], ends["second"]),
                anonymous=ends["attacker"]._replace(key=None, prefix=paths["anonymous"]),
                labels=ends["attacker"]._replace(prefix=paths["labels"]) if "labels" in paths else None,
                store=store,
                poison=AT_ONCE + SCORED if poison else None,
            )
            measured = uvloop.run(
                measure(attacks, world, ends["small"], ends["operator"], generators + 1, pairs, seed, deaths)
            )
    claims = claims_of(measured)
    asked = {"pairs": pairs, "calls": CALLS, "generators": generators, "limits": LIMITS}
    path = write_result(
        "attacks",
        {"small": SMALL, "labels": labels, "lmcache": True, "asked": asked, "attacks": measured, "claims": claims},
    )
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
