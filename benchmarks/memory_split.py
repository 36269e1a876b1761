"""Throughput by how KV memory is split between generator and reward model: the planner's split beside others.

    python -m benchmarks.memory_split
    python -m benchmarks.memory_split --shares 0.2,0.7 --turns 1

On a CPU, with host memory in place of a device's, and so little KV memory for both that it limits the throughput. Every
split is an application of its own, in turns, over HTTP, with the same problems under the same seeds.
"""

import random
import statistics
from typing import Annotated, Any

import httpx
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.kv_clamp import Run, other_trees, run
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment
from kvstore.memory.planner import TOKENS, split

SEARCH: dict[str, Any] = {"strategy": "beam_search", "n": 16, "m": 4}
MEMORY = 16 << 20
CLIENTS = 16
WARM_UP = 16
SEED = 7
MIN_RATIO = 0.95
PLANNED = "planned"
console = Console(stderr=True)


def planned_bytes() -> tuple[int, int]:
    """The planner's split: bytes of KV for generator and reward model, without weights and the rest."""
    from deployments.startup.memory_plan import roles_of

    roles = [role._replace(weight_bytes=0) for role in roles_of(AppConfig(), 0, TOKENS)]
    generator, prm = split(roles, MEMORY, used=1.0)
    return generator.kv_bytes, prm.kv_bytes


def config_of(generator: int, prm: int, cache: bool) -> AppConfig:
    return AppConfig.model_validate(
        {
            "generator": {"kv_cache_memory_bytes": generator},
            "prm": {"kv_cache_memory_bytes": prm, "reward_cache_size": 0},
            "cache": {"enabled": cache},
        }
    )


async def turn(url: str, problems: int) -> Run:
    drawn = draw_problems(Split.VALIDATION, SEED)
    warm_up = [next(drawn) for _ in range(WARM_UP)]
    measured = [next(drawn) for _ in range(problems)]
    await run(url, SEARCH, warm_up, CLIENTS, SEED, counters)
    return await run(url, SEARCH, measured, CLIENTS, SEED, counters)


async def counters(http: httpx.AsyncClient) -> dict[str, int]:
    status = (await http.get("/v1/status")).raise_for_status().json()
    return {
        f"{role}_{name}": sum(replica[name] for replica in status[role])
        for role in ("generator", "prm")
        for name in ("preemptions", "prompt_tokens", "prefix_hits")
    }


def main(
    shares: Annotated[str, typer.Option(help="The generator's shares of the memory.")] = "0.2,0.35,0.5,0.75",
    problems: Annotated[int, typer.Option(min=8, max=10_000)] = 48,
    turns: Annotated[int, typer.Option(min=1, max=20)] = 2,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = False,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    splits = {PLANNED: planned_bytes()}
    splits |= {share: (int(float(share) * MEMORY), MEMORY - int(float(share) * MEMORY)) for share in shares.split(",")}
    runs: dict[str, list[Run]] = {name: [] for name in splits}
    rng = random.Random(SEED)
    for number in range(turns):
        for name in rng.sample(list(splits), len(splits)):
            with application(config_of(*splits[name], cache)) as url:
                runs[name].append(uvloop.run(turn(url, problems)))
            console.print(f"turn {number + 1}, {name}: {runs[name][-1].rate:.2f} searches/s")
    rates = {name: statistics.median(each.rate for each in of) for name, of in runs.items()}
    rows: list[dict[str, Any]] = [
        {
            "split": name,
            "generator_bytes": splits[name][0],
            "prm_bytes": splits[name][1],
            "searches_per_s": [round(each.rate, 3) for each in of],
            "counted": [each.counted for each in of],
            "other_trees": other_trees(of, runs[PLANNED]),
        }
        for name, of in runs.items()
    ]
    best = max(rates, key=lambda name: rates[name])
    ratio = round(rates[PLANNED] / rates[best], 3)
    claims = [claim(f"the planned split over the best one ({best})", ratio, f">= {MIN_RATIO}", ratio >= MIN_RATIO)]
    path = write_result("memory_split", {"bytes": MEMORY, "clients": CLIENTS, "rows": rows, "claims": claims})
    table = Table("split", "generator", "reward model", "searches/s", "preemptions", "PRM tokens computed")
    for row in rows:
        counted = row["counted"][-1]
        computed = counted["prm_prompt_tokens"] - counted["prm_prefix_hits"]
        sizes = f"{row['generator_bytes']:,}", f"{row['prm_bytes']:,}"
        table.add_row(
            row["split"], *sizes, f"{rates[row['split']]:.2f}", str(counted["generator_preemptions"]), str(computed)
        )
    console.print(table)
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
