"""What the serve tests do with the application: ask it, look into it, and break it."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import httpx
import ray

from deployments.config import AppConfig
from deployments.embedded.problems import Problem, Split, draw_problems

Json = dict[str, Any]
T = TypeVar("T")
BEAM: Json = {"strategy": "beam_search", "n": 8, "m": 4}
REPAIR_S = 240.0
"""Longest wait for a replica to be replaced: an engine takes half a minute, on a busy machine two."""


class Application:
    """A running application, seen from outside (HTTP) and from Ray."""

    NAME = "banyan"

    def __init__(self, url: str, key: str, config: AppConfig, started_at: float, other_key: str) -> None:
        """``key`` and ``other_key``: API keys that it accepts. ``started_at``: Unix seconds."""
        self.url = url
        self.key = key
        self.other_key = other_key
        self.config = config
        self.started_at = started_at
        self.http = self.client(httpx.Timeout(300.0))
        # Handles belong to the loop of their first use, so all their uses share one that outlives every test.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="handles", daemon=True).start()

    def client(self, timeout: httpx.Timeout) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=timeout)

    def chat(self, problem: Problem, seed: int, route: str = "/v1/chat/completions", **fields: Any) -> Json:
        reply = self.http.post(route, json=request(problem, seed, **fields))
        assert reply.status_code == 200, reply.text
        body: Json = reply.json()
        return body

    def trees(self, problems: Sequence[Problem], seed: int, during: Callable[[], None] | None = None) -> list[Json]:
        """Searches all problems at once and returns the replies with their trees; ``during`` is called
        when the first search has ended and the others are under way."""
        with ThreadPoolExecutor(len(problems)) as pool:
            searches = [
                pool.submit(self.chat, problem, seed + index, "/v1/search") for index, problem in enumerate(problems)
            ]
            if during is not None:
                until(lambda: any(search.done() for search in searches), "the first search ends", every_s=0.01)
                during()
            return [search.result() for search in searches]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs what uses Serve handles."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=300)

    def status(self) -> Json:
        status: Json = self.http.get("/v1/status").json()
        return status

    def generated_tokens(self) -> int:
        """The generator engines' own counters, summed over replicas."""
        return sum(replica["generated_tokens"] for replica in self.status()["generator"])

    def is_whole(self) -> bool:
        """All replicas answer, nothing runs, nothing is left over."""
        status = self.status()
        replicas = status["generator"]
        return (
            status["searches"] == 0
            and status["integrity"] == []
            and len(replicas) == self.config.generator.replicas.min_replicas
            and all("error" not in replica for replica in [*replicas, *status["prm"]])
        )

    def wait_until_whole(self) -> None:
        until(self.is_whole, "the application is idle and whole", REPAIR_S)

    def replica_pids(self, deployment: str) -> list[int]:
        """Process ids of a deployment's replicas."""
        prefix = f"SERVE_REPLICA::{self.NAME}#{deployment}#"
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        actors = [ray.get_actor(name, namespace="serve") for name in names if name.startswith(prefix)]
        pids = ray.get([actor.__ray_call__.remote(lambda self: os.getpid()) for actor in actors], timeout=30)
        return sorted(pids)


def request(problem: Problem, seed: int, **fields: Any) -> Json:
    return {
        "model": "banyan-arithmetic",
        "messages": [{"role": "user", "content": problem.text}],
        "seed": seed,
        "search": BEAM,
        **fields,
    }


def problems(count: int, seed: int, level: int | None = None) -> list[Problem]:
    return list(islice(draw_problems(Split.TEST, seed, level), count))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0, every_s: float = 0.2) -> None:
    """Waits for ``condition``, which other processes bring about; fails the test after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(every_s)
