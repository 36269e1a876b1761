"""A second generator replica, added to an application that runs."""

import itertools
import time
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import httpx

from benchmarks.start.application import StartedApplication
from benchmarks.start.processes import ProcessRow

SCALE_S = 300.0
POLL_S = 0.25
HTTP_S = 30.0
SEARCH = {"strategy": "best_of_n", "n": 1}
"""A request that costs little beside a start."""
FIRST_SEED = 100


class ScaledUp(NamedTuple):
    """A replica that was added. Times in seconds since the new config was sent."""

    listed_s: float | None
    """When ``/v1/status`` had counters of it."""
    first_step_s: float | None
    """When the first answer was there that it had written a step of."""
    processes: list[ProcessRow]
    failure: str | None = None

    @property
    def json(self) -> dict[str, Any]:
        failure = {"failure": self.failure} if self.failure else {}
        return {
            "listed_s": self.listed_s,
            "first_step_s": self.first_step_s,
            **failure,
            "processes": [row.json for row in self.processes],
        }


def scale_up(application: StartedApplication) -> ScaledUp:
    """Scales the generator to two replicas as ``serve deploy`` does, and waits until the new one has written a step."""
    since, began = application.samples.seconds, time.monotonic()
    listed_s = first_step_s = failure = None
    try:
        _deploy(application, two_generators(application.config, httpx.URL(application.url).port))
        before = _wait_listed(application, began + SCALE_S)
        listed_s = round(time.monotonic() - began, 2)
        first_step_s = round(_wait_step(application, before, began + SCALE_S) - began, 2)
    except (TimeoutError, LookupError, OSError, httpx.HTTPError) as error:
        failure = str(error) or type(error).__name__
    return ScaledUp(listed_s, first_step_s, application.samples.rows(since), failure)


def two_generators(config: dict[str, Any], port: int | None) -> dict[str, Any]:
    """The config that an operator deploys: only ``deployments`` differs, so no replica restarts."""
    changed = deepcopy(config)
    changed["http_options"] = {**(changed.get("http_options") or {}), "port": port}
    application = changed["applications"][0]
    others = [each for each in application.get("deployments") or [] if each["name"] != "Generator"]
    application["deployments"] = [*others, {"name": "Generator", "num_replicas": 2}]
    return changed


def _deploy(application: StartedApplication, config: dict[str, Any]) -> None:
    url, headers = application.dashboard()
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=HTTP_S) as http:
        http.put("/api/serve/applications/", json=config).raise_for_status()


def _wait_listed(application: StartedApplication, deadline: float) -> int:
    """Returns the tokens that the new replica has written so far, at its warm-up."""
    while time.monotonic() < deadline:
        if len(tokens := _generated_tokens(application)) == 2:
            return min(tokens)
        time.sleep(POLL_S)
    raise TimeoutError(f"no second generator replica within {SCALE_S:g} s")


def _wait_step(application: StartedApplication, before: int, deadline: float) -> float:
    """Asks until the new replica has written more than ``before`` tokens. Returns the time of that answer."""
    for seed in itertools.count(FIRST_SEED):
        if time.monotonic() > deadline:
            break
        application.ask(seed, HTTP_S, **SEARCH)
        answered = time.monotonic()
        if min(_generated_tokens(application), default=0) > before:
            return answered
    raise TimeoutError(f"no step of the second generator replica within {SCALE_S:g} s")


def _generated_tokens(application: StartedApplication) -> list[int]:
    """Tokens that each generator replica has written; none of replicas that do not answer."""
    with suppress(httpx.HTTPError), httpx.Client(trust_env=False, timeout=HTTP_S) as http:
        status = http.get(f"{application.url}/v1/status").raise_for_status().json()
        return [each["generated_tokens"] for each in status["generator"] if "error" not in each]
    return []
