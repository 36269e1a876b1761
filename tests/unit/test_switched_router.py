"""The switch between routers: calls go to the active one, and all of them get the same news of replicas."""

from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID

from benchmarks import routers, routing
from benchmarks.routers import PRM_ROUTERS, ROUTER_FILE, ROUTERS, Switched


class Router:
    def __init__(self, **given: Any) -> None:
        self.given = given
        self.events: list[tuple[Any, ...]] = []

    def on_send_request(self, *event: Any) -> None:
        self.events.append(event)

    def on_request_routed(self, *event: Any) -> None:
        self.events.append(event)

    @property
    def curr_replicas(self) -> str:
        return f"replicas of {self.given['name']}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "router"
    monkeypatch.setenv(ROUTER_FILE, str(file))

    def maker_of(name: str) -> Any:
        return lambda **given: Router(name=name, **given)

    monkeypatch.setattr(routers, "ROUTERS", {name: maker_of(name) for name in ("one", "other")})
    monkeypatch.setattr(routers, "PRM_ROUTERS", {name: maker_of(f"{name} for scores") for name in ("one", "other")})
    return file


def test_calls_go_to_the_active_router(file: Path) -> None:
    switched = Switched(DeploymentID("Generator"), handle="same")
    for name in ("one", "other", "one"):
        file.write_text(name, encoding="utf-8")
        switched.on_request_routed(name)
        assert switched.curr_replicas == f"replicas of {name}"

    assert switched._routers["one"].events == [("one",), ("one",)]
    assert switched._routers["other"].events == [("other",)]
    assert all(router.given["handle"] == "same" for router in switched._routers.values())


def test_reward_models_have_their_own_routers(file: Path) -> None:
    file.write_text("one", encoding="utf-8")

    assert Switched(DeploymentID("ProcessRewardModel")).curr_replicas == "replicas of one for scores"


def test_all_routers_get_events_of_replicas(file: Path) -> None:
    switched = Switched(DeploymentID("Generator"))
    file.write_text("one", encoding="utf-8")
    switched.on_send_request("replica")

    assert [router.events for router in switched._routers.values()] == [[("replica",)]] * 2


def test_all_routers_have_the_methods_that_are_broadcast() -> None:
    assert tuple(ROUTERS) == tuple(PRM_ROUTERS) == routing.ARMS
    for router in (*ROUTERS.values(), *PRM_ROUTERS.values()):
        assert all(callable(getattr(router, name)) for name in Switched.BROADCAST)
