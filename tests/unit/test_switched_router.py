"""Routers that take turns: calls go through the one that is on, and all of them know the same of replicas."""

from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID

from benchmarks import routers, routing
from benchmarks.routers import OF_SCORES, ROUTER_FILE, ROUTERS, Switched


class Router:
    def __init__(self, **given: Any) -> None:
        self.given = given
        self.told: list[tuple[Any, ...]] = []

    def on_send_request(self, *told: Any) -> None:
        self.told.append(told)

    def on_request_routed(self, *told: Any) -> None:
        self.told.append(told)

    @property
    def curr_replicas(self) -> str:
        return f"those of {self.given['name']}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "router"
    monkeypatch.setenv(ROUTER_FILE, str(file))

    def made(name: str) -> Any:
        return lambda **given: Router(name=name, **given)

    monkeypatch.setattr(routers, "ROUTERS", {name: made(name) for name in ("one", "other")})
    monkeypatch.setattr(routers, "OF_SCORES", {name: made(f"{name} of scores") for name in ("one", "other")})
    return file


def test_a_call_goes_through_the_one_that_is_on(file: Path) -> None:
    switched = Switched(DeploymentID("Generator"), handle="same")
    for name in ("one", "other", "one"):
        file.write_text(name, encoding="utf-8")
        switched.on_request_routed(name)
        assert switched.curr_replicas == f"those of {name}"

    assert switched._routers["one"].told == [("one",), ("one",)]
    assert switched._routers["other"].told == [("other",)]
    assert all(router.given["handle"] == "same" for router in switched._routers.values())


def test_scores_have_routers_of_their_own(file: Path) -> None:
    file.write_text("one", encoding="utf-8")

    assert Switched(DeploymentID("ProcessRewardModel")).curr_replicas == "those of one of scores"


def test_all_are_told_what_happens_to_replicas(file: Path) -> None:
    switched = Switched(DeploymentID("Generator"))
    file.write_text("one", encoding="utf-8")
    switched.on_send_request("replica")

    assert [router.told for router in switched._routers.values()] == [[("replica",)]] * 2


def test_what_all_are_told_serves_routers_know() -> None:
    assert tuple(ROUTERS) == tuple(OF_SCORES) == routing.ARMS
    for router in (*ROUTERS.values(), *OF_SCORES.values()):
        assert all(callable(getattr(router, name)) for name in Switched.TOLD)
