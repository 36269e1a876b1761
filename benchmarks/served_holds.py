"""How long tasks hold the event loop of a served controller under constant load.

    python -m benchmarks.served_holds

Sixteen searches at a time for some minutes: beam search, DVTS and MCTS in turn, streamed and not. In the controller,
every step of every task that starts meanwhile is timed, and every garbage collection, in CPU time of the thread, so
that other programs on the machine do not count. Callbacks outside of tasks are not seen, since the loop is uvloop's.
"""

import asyncio
import time
from itertools import count
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from benchmarks.record import claim, show_claims, write_result
from benchmarks.replicas import in_replicas
from benchmarks.served_overhead import application
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Split, draw_problems
from deployments.startup.environment import set_environment

SEARCHES: tuple[dict[str, Any], ...] = (
    {"strategy": "beam_search", "n": 16, "m": 4},
    {"strategy": "dvts", "n": 64, "m": 4},
    {"strategy": "mcts", "budget": {"tokens": 2000}},
)
CLIENTS = 16
MAX_MS = 5.0
WARM_UP_S = 20.0
SEED = 5
console = Console(stderr=True)


def begin(_: Any) -> None:
    """Starts to time the tasks of the controller's loop."""
    from contextlib import ExitStack

    import psutil

    from benchmarks import loop_holds

    stack, holds, garbage = ExitStack(), loop_holds.Holds(), loop_holds.GarbageClock()
    stack.enter_context(garbage.running())
    # This runs in a thread of its own; the running loops are found through their tasks.
    for loop in {task.get_loop() for task in list(asyncio.tasks._all_tasks)}:  # type: ignore[attr-defined]
        stack.enter_context(loop_holds.measured_tasks(loop, holds, garbage))
    vars(loop_holds)["of_this_process"] = stack, holds, garbage, psutil.Process().memory_info().rss


def end(_: Any) -> dict[str, Any]:
    """Stops the timing and returns its figures."""
    import gc

    import psutil

    from benchmarks import loop_holds

    stack, holds, garbage, resident = vars(loop_holds).pop("of_this_process")
    stack.close()
    return {
        "steps": holds.callbacks,
        "seconds": round(holds.seconds, 3),
        "longest": [{"ms": round(hold.seconds * 1e3, 3), "of": hold.what} for hold in holds.longest],
        "garbage": {
            "seconds": round(garbage.seconds, 3),
            "longest_ms": round(garbage.longest * 1e3, 3),
            "full": garbage.full,
            "objects_left": len(gc.get_objects(2)),
        },
        "resident_mb_gained": round((psutil.Process().memory_info().rss - resident) / 2**20, 2),
    }


async def load(url: str, seconds: float) -> int:
    """Runs constant load, and returns the number of answered searches."""
    problems, numbers, answered = draw_problems(Split.TEST, SEED), count(), 0
    until = time.monotonic() + seconds

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal answered
        while time.monotonic() < until:
            number = next(numbers)
            body = {
                "model": "banyan-arithmetic",
                "messages": [{"role": "user", "content": next(problems).text}],
                "seed": number,
                "search": SEARCHES[number % len(SEARCHES)],
                "stream": number % 2 == 0,
            }
            reply = await http.post("/v1/chat/completions", json=body)
            reply.raise_for_status()
            answered += 1

    async with (
        httpx.AsyncClient(base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None)) as http,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(CLIENTS):
            group.create_task(client(http))
    return answered


def main(
    minutes: Annotated[float, typer.Option(min=0.1, max=600)] = 5.0,
    cache: Annotated[bool, typer.Option(help="With LMCache, or without.")] = True,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    with application(AppConfig.model_validate({"cache": {"enabled": cache}})) as url:
        asyncio.run(load(url, WARM_UP_S))
        in_replicas("SearchController", begin)
        answered = asyncio.run(load(url, 60.0 * minutes))
        [found] = in_replicas("SearchController", end)
    if not found["steps"]:
        raise RuntimeError("no task was timed")
    longest = max(found["longest"][0]["ms"], found["garbage"]["longest_ms"])  # also outside of tasks
    name = "longest step of a task, or collection of garbage, in the controller, ms"
    claims = [claim(name, longest, f"<= {MAX_MS}", longest <= MAX_MS)]
    asked = {"minutes": minutes, "clients": CLIENTS, "searches": SEARCHES, "lmcache": cache}
    path = write_result("served_holds", {"asked": asked, "answered": answered, **found, "claims": claims})
    console.print(f"{answered} searches, {found['steps']} steps, garbage {found['garbage']}")
    for hold in found["longest"]:
        console.print(f"  {hold['ms']:7.2f} ms  {hold['of']}")
    show_claims(console, claims)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
