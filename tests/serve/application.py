"""Helpers of the serve tests: send requests to the application, inspect it, and break it."""

import asyncio
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import psutil
import pytest
import ray
from ray import serve

from benchmarks.replicas import in_replicas
from cluster.launch.application import free_port
from deployments.admission.keys import read_records
from deployments.app import build
from deployments.config import AppConfig, ControllerUserConfig
from deployments.controller import SearchController
from deployments.embedded.problems import Problem, Split, draw_problems
from search.ports import Branch, ExpandItem, ExpandRequest, Lane, Sampling, StopCondition, branch_seed

Json = dict[str, Any]
T = TypeVar("T")
BEAM: Json = {"strategy": "beam_search", "n": 8, "m": 4}
STORED_S = 2.0
"""Wait after a reply: a reply does not wait until its KV has been stored."""
SMALL_PLACES = 16
REPAIR_S = 240.0
"""Longest wait for the replacement of a replica: an engine takes half a minute, on a busy machine two."""


class Application:
    """A running application, accessed over HTTP and through Ray."""

    NAME = "banyan"

    def __init__(
        self,
        url: str,
        key: str,
        config: AppConfig,
        started_at: float,
        other_key: str,
        small_keys: tuple[str, str],
    ) -> None:
        """``key`` and ``other_key``: API keys that it accepts. ``small_keys``: further ones, of `SMALL_PLACES` places.
        ``started_at``: Unix seconds."""
        self.url = url
        self.key = key
        self.other_key = other_key
        self.small_keys = small_keys
        self.config = config
        self.started_at = started_at
        self.http = self.client(httpx.Timeout(300.0))
        # Handles belong to the event loop of their first use, so all uses share one loop that outlives every test.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="handles", daemon=True).start()

    def client(self, timeout: httpx.Timeout, url: str | None = None) -> httpx.Client:
        """Returns a client with the application's key, of its endpoint or of another controller's ``url``."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=url or self.url, headers=headers, timeout=timeout)

    def async_client(self, timeout: httpx.Timeout) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=timeout,
            limits=httpx.Limits(max_connections=None),
        )

    def chat(self, problem: Problem, seed: int, route: str = "/v1/chat/completions", **fields: Any) -> Json:
        reply = self.http.post(route, json=request(problem, seed, **fields))
        assert reply.status_code == 200, reply.text
        body: Json = reply.json()
        return body

    def trees(self, problems: Sequence[Problem], seed: int, during: Callable[[], None] | None = None) -> list[Json]:
        """Searches all problems at once and returns the replies with their trees. ``during`` is called when the first
        search has ended and the others are under way."""
        with ThreadPoolExecutor(len(problems)) as pool:
            searches = [
                pool.submit(self.chat, problem, seed + index, "/v1/search") for index, problem in enumerate(problems)
            ]
            if during is not None:
                until(lambda: any(search.done() for search in searches), "the first search ends", every_s=0.01)
                during()
            return [search.result() for search in searches]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine that uses Serve handles."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=300)

    def status(self) -> Json:
        status: Json = self.http.get("/v1/status").json()
        return status

    def generated_tokens(self) -> int:
        """Sum of the generator engines' own counters."""
        return sum(replica["generated_tokens"] for replica in self.status()["generator"])

    def requested_tokens(self) -> int:
        """Number of them that searches asked for. How many are written ahead in vain depends on how long rewards take,
        and usage has none of them."""
        self.wait_until_whole()  # what was written ahead is counted once it has ended
        return sum(each["generated_tokens"] - each["ahead_unused_tokens"] for each in self.status()["generator"])

    def is_whole(self) -> bool:
        """Whether all replicas answer, nothing runs, and nothing is left over."""
        try:
            status: Json = self.http.get("/v1/status").raise_for_status().json()
        except httpx.HTTPError:  # the controller is being replaced
            return False
        return (
            status["searches"] == 0
            and status["integrity"] == []
            and len(status["generator"]) == self.config.generator.replicas.min_replicas
            and len(status["prm"]) == self.config.prm.replicas.min_replicas
            and all("error" not in replica for replica in [*status["generator"], *status["prm"]])
        )

    def wait_until_whole(self) -> None:
        until(self.is_whole, "the application is idle and whole", REPAIR_S)

    def in_replicas(self, deployment: str, what: Callable[[Any], T]) -> list[T]:
        return in_replicas(deployment, what, self.NAME)

    def replica_pids(self, deployment: str) -> list[int]:
        """Process ids of a deployment's replicas."""
        return sorted(self.in_replicas(deployment, lambda _: os.getpid()))


def tolerate_rays_warnings(item: pytest.Item) -> None:
    for category in ("ResourceWarning", "FutureWarning", "DeprecationWarning"):
        item.add_marker(pytest.mark.filterwarnings(f"default::{category}"))


@contextmanager
def running(settings: Json, directory: Path, **ray_arguments: Any) -> Iterator[Application]:
    """The application, with four API keys that are created in ``directory``; on a Ray of its own, or on the cluster
    that ``ray_arguments`` (for ``ray.init``) name."""
    os.environ.pop("BANYAN_API_KEYS", None)
    key, other_key, *small = (secrets.token_urlsafe() for _ in range(4))
    keys_file = directory / "keys"
    limited = "".join(f"{each} places={SMALL_PLACES}\n" for each in small)
    keys_file.write_text(f"{key} operator  # the tests\n{other_key}\n{limited}")
    started_at = time.time()
    own = {
        "address": "local",
        "num_cpus": 8,
        "include_dashboard": False,
        "_system_config": {"metrics_report_interval_ms": 2000},  # tests wait for it; Ray's own is ten seconds
    }
    ray.init(**(ray_arguments or own), log_to_driver=False)
    port = free_port()  # after Ray has taken its ports
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        http = {**settings.get("http", {}), "api_keys_file": str(keys_file)}
        config = AppConfig.model_validate({**settings, "http": http})
        serve.run(build(config), name=Application.NAME)
        url = f"http://127.0.0.1:{port}"
        application = Application(url, key, config, started_at, other_key, (small[0], small[1]))
        yield application
        application.http.close()
    finally:
        serve.shutdown()
        ray.shutdown()


@contextmanager
def another_controller(application: Application, name: str, config: AppConfig, prm: Any) -> Iterator[str]:
    """A controller beside the application's, over its generators and the reward models ``prm``; yields its URL."""
    generator = serve.get_deployment_handle("Generator", application.NAME)
    keys = read_records(config.http.api_keys_file)
    controller = SearchController.options(
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=256,
        user_config=ControllerUserConfig(keys=keys).model_dump(mode="json"),
    ).bind(config, generator, prm)
    serve.run(controller, name=name, route_prefix=f"/{name}")
    try:
        yield f"{application.url}/{name}"
    finally:
        serve.delete(name)


def is_idle(client: httpx.Client) -> bool:
    """Whether the client's controller runs no search and reports no leftovers."""
    status = client.get("/v1/status").raise_for_status().json()
    return bool(status["searches"] == 0 and status["integrity"] == [])


def leave_once_it_runs(client: httpx.Client, path: str, body: Json, headers: Mapping[str, str] | None = None) -> None:
    """Sends a request that is not streamed to a client's controller, and hangs up once its search runs. It must last
    until then, and be the only one."""
    sent = client.build_request("POST", path, json=body, headers=headers)
    url = sent.url
    lines = [f"POST {url.raw_path.decode()} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.headers.items())]
    with socket.create_connection((url.host, url.port or 80), 60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + sent.content)
        until(lambda: client.get("/v1/status").json()["searches"] == 1, "it runs", every_s=0.05)


def request(problem: Problem, seed: int, **fields: Any) -> Json:
    return {
        "model": "banyan-arithmetic",
        "messages": [{"role": "user", "content": problem.text}],
        "seed": seed,
        "search": BEAM,
        **fields,
    }


def new_prefix() -> tuple[int, ...]:
    """Ten whole blocks of tokens."""
    return tuple(4 + byte for byte in uuid4().bytes * 20)


def cached_by_prefix(application: Application, calls: int, prefix: tuple[int, ...] = ()) -> list[int]:
    """Cached tokens of consecutive calls with one prefix, a new one by default, on the replicas that Serve chooses."""
    prefix = prefix or new_prefix()
    cached = cached_by_salt(application, prefix, [""])
    time.sleep(STORED_S)
    return cached + cached_by_salt(application, prefix, [""] * (calls - 1))


def cached_by_salt(application: Application, prefix: tuple[int, ...], salts: Sequence[str]) -> list[int]:
    """The same, with one call for each of these tenants in their order."""
    return application.run(_cached_by_call(application, prefix, salts))


async def _cached_by_call(application: Application, prefix: tuple[int, ...], salts: Sequence[str]) -> list[int]:
    handle = serve.get_deployment_handle("Generator", application.NAME).options(stream=True)
    cached = []
    for index, salt in enumerate(salts):
        expansion = ExpandItem((), prefix, (Branch(0, branch_seed(index, (), 0), 1),))
        request = ExpandRequest(
            uuid4().hex, (expansion,), Sampling(), StopCondition.STEP, Lane.DEMAND, 60.0, cache_salt=salt
        )
        async for group in handle.expand.remote(request):
            cached += [child.cached_tokens for child in group.children]
    return cached


def cache_servers(application: Application) -> list[psutil.Process]:
    """LMCache servers of the application. They detach from their parent, so they are recognized by their age."""
    return [process for process in psutil.process_iter() if _is_cache_server(process, application.started_at)]


def _is_cache_server(process: psutil.Process, since: float) -> bool:
    try:
        command = process.cmdline()
        return "lmcache.v1.multiprocess.http_server" in command and "-m" in command and process.create_time() >= since
    except psutil.Error:
        return False


def problems(count: int, seed: int, level: int | None = None) -> list[Problem]:
    return list(islice(draw_problems(Split.TEST, seed, level), count))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0, every_s: float = 0.2) -> None:
    """Waits until ``condition`` holds, which other processes bring about; fails the test after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(every_s)
