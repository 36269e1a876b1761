"""Memory split, clamp and LMCache on a device, as a table; see docs/gpu.md.

    python -m benchmarks.gpu my_config.yaml
    python -m benchmarks.gpu serve_config.yaml --memory 24MiB --working 1MiB     on a CPU, to see that the program runs

Three applications run one after the other, each with the same split of memory: without clamp and cache, with the
clamp, and with both. More clients search at once than fit, and MCTS comes back to old paths.
"""

import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.kv_clamp import SEARCHES, Run, run
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import application
from cluster.cli.plan import planned, settings
from cluster.launch.config_file import app_config, read_config
from cluster.launch.token import ensure_token
from deployments.config import AppConfig, merged
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment
from kvstore.memory.device_memory import TOKENS, Share

ARMS: dict[str, dict[str, Any]] = {
    "neither": {"generator": {"clamp": "off"}, "cache": {"enabled": False}},
    "clamp": {"generator": {"clamp": "wait"}, "cache": {"enabled": False}},
    "clamp and cache": {"generator": {"clamp": "wait"}, "cache": {"enabled": True}},
}
SERVED_NAME = "banyan-arithmetic"
SEED = 13
MIB = 1 << 20
console = Console(stderr=True)


def used_mib(output: str) -> int:
    """MiB in use on the first device, from the output of ``nvidia-smi``."""
    return int(output.splitlines()[0].strip())


def device_used() -> int | None:
    """MiB in use on the device; None without a device."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return used_mib(subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout)
    except (OSError, subprocess.SubprocessError):
        return None


def row(arm: str, strategy: str, ran: Run, before: int | None, after: int | None) -> dict[str, Any]:
    figures = ran.figures
    return {
        "arm": arm,
        "strategy": strategy,
        **figures,
        "p95_s": figures["seconds"]["p95"],
        "recomputed_share": round(figures["recomputed_tokens"] / max(figures["generated_tokens"], 1), 4),
        "device_mib": None if before is None or after is None else after - before,
    }


def claims(rows: list[dict[str, Any]], shares: list[Share], whole: int) -> list[dict[str, Any]]:
    """Claims: engines stay within the plan, the clamp avoids preemptions, and LMCache gets hits."""
    found = []
    planned_mib = round(sum(share.device for share in shares) * whole / MIB)
    if (taken := max((each["device_mib"] or 0 for each in rows), default=0)) > 0:
        found.append(claim("MiB that both engines take", taken, f"<= {planned_mib}, as planned", taken <= planned_mib))
    by = {(each["arm"], each["strategy"]): each for each in rows}
    for strategy in dict.fromkeys(each["strategy"] for each in rows):
        without, clamped, cached = (by[arm, strategy] for arm in ARMS)
        again = clamped["preemptions"]
        fewer = again < without["preemptions"] or again == 0
        found.append(claim(f"{strategy}: preemptions with the clamp", again, f"< {without['preemptions']}", fewer))
        hits = cached["external_hits"]
        found.append(claim(f"{strategy}: tokens that LMCache gave back", hits, "> 0", hits > 0))
    return found


async def searches(url: str, problems: int, clients: int) -> dict[str, Run]:
    drawn = draw_problems(Split.VALIDATION, SEED)
    await run(url, SEARCHES["beam"], [next(drawn) for _ in range(clients)], clients)
    measured = [next(drawn) for _ in range(problems)]
    return {strategy: await run(url, search, measured, clients) for strategy, search in SEARCHES.items()}


def main(
    config: Path,
    memory: Annotated[str | None, typer.Option(help="As for `banyan plan`.")] = None,
    working: Annotated[str, typer.Option(help="As for `banyan plan`.")] = "2GiB",
    problems: Annotated[int, typer.Option(min=8, max=10_000)] = 64,
    clients: Annotated[int, typer.Option(min=1, max=128)] = 64,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    given = app_config(read_config(config))
    shares, whole, on_gpu = planned(given, memory, working, TOKENS)
    common = merged(given.model_dump(exclude_unset=True), settings(shares, on_gpu))
    common = merged(common, {"generator": {"served_name": SERVED_NAME}, "controller": {"searches": 128}})
    rows = []
    before = device_used()
    for arm, changed in ARMS.items():
        with application(AppConfig.model_validate(merged(common, changed))) as url:
            after = device_used()
            found = uvloop.run(searches(url, problems, clients))
        rows += [row(arm, strategy, ran, before, after) for strategy, ran in found.items()]
        rates = {strategy: f"{ran.figures['searches_per_s']:.2f}/s" for strategy, ran in found.items()}
        console.print(f"{arm}: {rates}")
    plan = [{"engine": share.role.name, "blocks": share.blocks, "device": share.device} for share in shares]
    checked = claims(rows, shares, whole)
    path = write_result("gpu", {"memory": whole, "plan": plan, "clients": clients, "rows": rows, "claims": checked})
    columns = ("searches_per_s", "p95_s", "preemptions", "recomputed_share", "external_hits", "device_mib")
    table = Table("arm", "strategy", *columns)
    for each in rows:
        table.add_row(each["arm"], each["strategy"], *(str(each[name]) for name in columns))
    console.print(table)
    show_claims(console, checked)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
