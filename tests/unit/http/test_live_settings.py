"""Changes of ``user_config`` take effect with the next request to a controller."""

import json
from typing import Any

import pytest
from http_world import World, chat

from deployments.config import AppConfig
from deployments.service.slots import Owner
from deployments.startup.access import AccessError, changed_settings, read_user_config

CHAT = "/v1/chat/completions"


def change(world: World, **controller: Any) -> None:
    told = read_user_config({"keys": [], "controller": controller})
    world.live.change(changed_settings(world.config, told))


@pytest.mark.asyncio
async def test_limits_the_default_search_and_places_change_while_it_serves(world: World) -> None:
    async with world.client as http:

        async def asked(**fields: Any) -> tuple[int, dict[str, Any]]:
            reply = await http.post(CHAT, json=chat(**fields))
            return reply.status_code, reply.json()

        assert (await asked(search={"n": 8}))[0] == 200
        change(world, limits={"n": 4}, default_search={"strategy": "best_of_n", "n": 3}, searches=2)

        status, refused = await asked(search={"n": 8})
        assert (status, refused["error"]["param"]) == (400, "search.n")
        status, answered = await asked()
        assert (status, answered["search"]["strategy"], answered["search"]["nodes"] > 0) == (200, "best_of_n", True)
        assert world.service.slots.count == 2

        change(world, searches=2, flex_places=0.5)
        async with world.service.slots.hold(Owner("one")):
            assert (await asked(service_tier="flex"))[0] == 429
            change(world, searches=2, flex_places=1.0)
            assert (await asked(service_tier="flex"))[0] == 200

        change(world, limits={"body_bytes": 1024})
        assert (await asked(search={"n": 8}))[0] == 200, "what is not said any more is as it was built"
        assert (await http.post(CHAT, content=json.dumps(chat()) + " " * 1024)).status_code == 413


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        ({"limits": {"n": 1000}}, r"user_config\.controller\.limits\.n: .*256"),
        ({"limits": {"m": 1}}, r"user_config\.controller\.limits\.m: "),
        ({"limits": {"depth": 99}}, r"user_config\.controller\.limits\.depth may be at most 50"),
        ({"limits": {"seconds": 601}}, r"user_config\.controller\.limits\.seconds may be at most 600: a controller"),
        ({"attempts": 1}, r"user_config\.controller\.attempts.*'searches', 'flex_places', 'queue', .* or 'limits'"),
        ({"default_search": {"strategy": "none such"}}, r"user_config\.controller\.default_search"),
        ({"searches": 0}, r"user_config\.controller\.searches"),
        ({"flex_places": 0}, r"user_config\.controller\.flex_places"),
        ({"flex_places": 1.5}, r"user_config\.controller\.flex_places"),
    ],
)
def test_settings_that_cannot_change_live_are_refused_by_their_path(controller: dict[str, Any], message: str) -> None:
    config = AppConfig.model_validate({"controller": {"limits": {"depth": 50}}})

    with pytest.raises(AccessError, match=message):
        changed_settings(config, read_user_config({"keys": [], "controller": controller}))


@pytest.mark.parametrize(("drain_s", "most"), [(None, 600.0), (10.0, 600.0), (900.0, 900.0)])
def test_the_limit_of_seconds_can_be_raised_up_to_drain_s(drain_s: float | None, most: float) -> None:
    """A controller that was built with a shorter ``drain_s`` than its searches may take keeps its limit."""
    config = AppConfig.model_validate({"controller": {"limits": {"seconds": 600}, "replicas": {"drain_s": drain_s}}})

    def changed(**limits: float) -> float:
        return changed_settings(config, read_user_config({"controller": {"limits": limits}})).limits.seconds

    assert changed(n=8) == 600.0
    assert changed(seconds=most) == most
    with pytest.raises(AccessError, match=f"limits.seconds may be at most {most:g}:"):
        changed(seconds=most + 1)


def test_only_the_named_fields_change() -> None:
    config = AppConfig.model_validate({"controller": {"limits": {"depth": 50, "n": 9}, "queue": {"places": 3}}})

    now = changed_settings(config, read_user_config({"controller": {"limits": {"n": 8}, "queue": {"seconds": 1.0}}}))

    assert (now.limits.n, now.limits.depth, now.queue.places, now.queue.seconds) == (8, 50, 3, 1.0)
    assert now.model_copy(update={"limits": config.controller.limits, "queue": config.controller.queue}) == (
        config.controller
    )
