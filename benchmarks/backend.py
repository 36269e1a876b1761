"""Banyan before a served model, beside its_hub before the same server, and beside Banyan's own engine.

    python -m benchmarks.backend --its-hub .venv-its-hub/bin/python
    python -m benchmarks.backend --its-hub .venv-its-hub/bin/python --rounds 2 --alone 1 --problems 2 --in-flight 2

`vllm serve` has the embedded generator. Four sides solve the same problems in turns, by self-consistency and by best of
n with the same Python function as the reward, one search at a time and several at once: its_hub as a library, without a
server of its own before it; Banyan as a library; Banyan served, over HTTP and Ray Serve; and Banyan served with its own
engine. CPU time is that of what stands between the client and the model: a library's process, or the proxy, the
controller and the replica that calls the backend. A call is one solution.

its_hub has a virtual environment of its own: `pip install "its_hub[lm]==1.2.0"`.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import psutil
import typer
from rich.console import Console

from benchmarks.backend_side import MAX_TOKENS, TEMPERATURE, Solved
from benchmarks.engines import solve_all
from benchmarks.ratios import ratio_with_interval
from benchmarks.record import claim, show_claims, write_result
from benchmarks.served_overhead import applications
from cluster.launch.application import free_port
from cluster.launch.token import ensure_token
from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems
from deployments.engines.environment import engine_environment
from deployments.engines.settings import GeneratorSettings
from deployments.startup.environment import set_environment

SEED = 64
MODEL = "banyan-arithmetic"
STRATEGIES = ("self_consistency", "best_of_n")
SIDES = ("its_hub", "library", "backend", "engine")
"""its_hub, Banyan as a library, Banyan served before the backend, Banyan served with its own engine."""
STARTUP_S = 300.0
ROOT = Path(__file__).parents[1]
console = Console(stderr=True)
Solve = Callable[[Problem, int], Awaitable[Solved]]


class Turn(NamedTuple):
    """All problems of a round on one side."""

    solved: list[Solved]
    seconds: float
    cpu_s: float

    @property
    def problems_per_second(self) -> float:
        return len(self.solved) / self.seconds


class Side(NamedTuple):
    """What solves problems, and the processes that stand between client and model."""

    solve: Solve
    processes: Callable[[], list[psutil.Process]]

    async def turn(self, problems: Sequence[Problem], in_flight: int) -> Turn:
        before = self._cpu_s()
        solved, seconds = await solve_all(self.solve, problems, in_flight, SEED)
        return Turn(solved, seconds, self._cpu_s() - before)

    def _cpu_s(self) -> float:
        total = 0.0
        for process in {each for root in self.processes() for each in (root, *root.children(recursive=True))}:
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextmanager
def vllm_serve() -> Iterator[str]:
    """`vllm serve` with the embedded generator, on a processor as Banyan's own engine; yields its address."""
    settings, port = GeneratorSettings(), free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", settings.model_path),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL),
        *("--max-model-len", str(settings.max_model_len), "--max-num-seqs", str(settings.max_num_seqs)),
        *("--dtype", "float32", "--block-size", "32", "--kv-cache-memory-bytes", str(256 << 20), "--enforce-eager"),
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--disable-uvicorn-access-log"),
    ]
    environment = {**os.environ, **engine_environment(settings)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False).status_code == httpx.codes.OK:
                return
        time.sleep(0.5)
    raise RuntimeError(f"vllm serve did not start: {url}")


@asynccontextmanager
async def library(python: str, name: str, url: str, strategy: str, n: int) -> AsyncIterator[Side]:
    """A library in a process of its own; see `benchmarks.backend_side`."""
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "benchmarks.backend_side", name, url, MODEL, strategy, str(n)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    given, said = process.stdin, process.stdout
    if not await said.readline():
        raise RuntimeError(f"{name} did not start")
    waiting: dict[int, asyncio.Future[Solved]] = {}

    async def read() -> None:
        while line := await said.readline():
            reply = json.loads(line)
            waiting.pop(reply["id"]).set_result(Solved(reply["answer"], reply["tokens"]))
        for each in waiting.values():
            each.set_exception(RuntimeError(f"{name} ended"))

    async def solve(problem: Problem, seed: int) -> Solved:
        waiting[seed] = asyncio.get_running_loop().create_future()
        given.write(json.dumps({"id": seed, "question": problem.text, "seed": seed}).encode() + b"\n")
        return await waiting[seed]

    reading = asyncio.create_task(read())
    try:
        yield Side(solve, lambda: [psutil.Process(process.pid)])
    finally:
        given.close()
        await reading
        await process.wait()


@asynccontextmanager
async def served(url: str, strategy: str, n: int) -> AsyncIterator[Side]:
    """An application, whose name is the end of its address."""
    name = f"ServeReplica:{url.rpartition('/')[2]}:"
    search = {"strategy": strategy, "n": n, "max_path_tokens": MAX_TOKENS, "temperature": TEMPERATURE}

    def processes() -> list[psutil.Process]:
        titles = {each: " ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)}
        return [each for each, title in titles.items() if name in title or "ProxyActor" in title]

    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=None)) as http:

        async def solve(problem: Problem, seed: int) -> Solved:
            messages = [{"role": "user", "content": problem.text}]
            body = {"model": MODEL, "messages": messages, "seed": seed, "search": search}
            reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()["search"]
            return Solved(reply["answer"], reply["generated_tokens"])

        yield Side(solve, processes)


Rounds = list[dict[str, Turn]]


async def measure(
    sides: Mapping[str, Side], stream: Iterator[Problem], in_flight: int, problems: int, rounds: int
) -> Rounds:
    """All sides in turn on the same problems; each goes first in its turn."""
    for side in sides.values():
        await side.turn(list(islice(draw_problems(Split.VALIDATION, SEED), in_flight)), in_flight)
    found: Rounds = []
    for index in range(rounds):
        drawn, names = list(islice(stream, problems)), [*sides]
        first = index % len(names)
        found.append({name: await sides[name].turn(drawn, in_flight) for name in names[first:] + names[:first]})
        console.print(", ".join(f"{name} {turn.problems_per_second:.2f}/s" for name, turn in found[-1].items()))
    return found


def figures(rounds: Rounds, n: int) -> dict[str, Any]:
    """Of each side, and the ratios of problems per second."""
    ratios = {
        f"{one}_over_{other}": ratio_with_interval(
            [(each[one].problems_per_second, each[other].problems_per_second) for each in rounds]
        ).as_json
        for one, other in (("backend", "its_hub"), ("library", "its_hub"), ("engine", "backend"))
    }
    sides = {side: _of_side([each[side] for each in rounds], n) for side in SIDES}
    return {"ratios": ratios, "sides": sides}


def _of_side(turns: Sequence[Turn], n: int) -> dict[str, Any]:
    calls = n * sum(len(turn.solved) for turn in turns)
    return {
        "problems_per_second": [round(turn.problems_per_second, 3) for turn in turns],
        "tokens": sum(solved.tokens for turn in turns for solved in turn.solved),
        "cpu_ms_per_call": round(1000 * sum(turn.cpu_s for turn in turns) / calls, 3),
    }


def claims(measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """That Banyan served is as fast as its_hub, under each load."""
    ratios = {load: round(each["ratios"]["backend_over_its_hub"]["ratio"], 3) for load, each in measured.items()}
    return [
        claim(f"{load}: problems/s, Banyan served over its_hub", ratio, ">= 1.0", ratio >= 1.0)
        for load, ratio in ratios.items()
    ]


async def compare(
    its_hub: str, urls: Mapping[str, str], n: int, loads: Mapping[int, int], rounds: int
) -> dict[str, dict[str, Any]]:
    """``urls``: of the backend and of both applications. ``loads``: searches in flight, and problems in a turn."""
    stream, measured = draw_problems(Split.TEST, SEED), {}
    for strategy in STRATEGIES:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            sides = {
                "its_hub": await enter(library(its_hub, "its_hub", urls["vllm"], strategy, n)),
                "library": await enter(library(sys.executable, "banyan", urls["vllm"], strategy, n)),
                "backend": await enter(served(urls["backend"], strategy, n)),
                "engine": await enter(served(urls["engine"], strategy, n)),
            }
            for in_flight, problems in loads.items():
                load = f"{strategy}, {in_flight} in flight"
                console.print(load)
                measured[load] = figures(await measure(sides, stream, in_flight, problems, rounds), n)
    return measured


def main(
    its_hub: Annotated[str, typer.Option(help="Python of an environment with its_hub.")],
    n: Annotated[int, typer.Option(min=2, max=64)] = 16,
    rounds: Annotated[int, typer.Option(min=2, max=50)] = 5,
    in_flight: Annotated[int, typer.Option(min=2, max=64)] = 16,
    problems: Annotated[int, typer.Option(min=1, max=256, help="In each turn with several in flight.")] = 32,
    alone: Annotated[int, typer.Option(min=1, max=64, help="Problems in each turn of searches alone.")] = 4,
) -> None:
    set_environment()  # before Ray is imported
    ensure_token()
    prm = {"family": "function", "function": "benchmarks.backend_side:rewards"}
    with vllm_serve() as url:
        configs = {
            "backend": {"generator": {"url": url, "served_name": MODEL}, "prm": prm},
            "engine": {"generator": {"served_name": MODEL}, "prm": prm},
        }
        parsed = {name: AppConfig.model_validate(config) for name, config in configs.items()}
        with applications(parsed) as [backend, engine]:
            urls = {"vllm": url, "backend": backend, "engine": engine}
            measured = asyncio.run(compare(its_hub, urls, n, {1: alone, in_flight: problems}, rounds))
    held = claims(measured)
    path = write_result("backend", {"n": n, "rounds": rounds, "loads": measured, "claims": held})
    show_claims(console, held)
    console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
