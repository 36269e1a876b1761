"""Flex requests: which requests are flex, what their replies report, and their effect on slots and engine lanes."""

import json
from typing import Any

import pytest
from http_world import World, chat
from hypothesis import given
from hypothesis import strategies as st
from test_admission import Call, MakeWorld, body_parts, busy, until

from deployments.admission.service_tier import asks_flex, flex_unless_said, may_ask_flex
from search.ports import Lane

CHAT = "/v1/chat/completions"
RESPONSES: dict[str, Any] = {"model": "m", "input": "6*7?"}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "a", "use_beam_search": True, "n": 2, "max_tokens": 3}
SCORE: dict[str, Any] = {"question": "6*7?", "steps": ["a"]}
BODIES = {CHAT: chat(), "/v1/search": chat(), "/v1/responses": RESPONSES, "/v1/completions": COMPLETION}
BODIES |= {"/v1/score": SCORE}
FLEX_LANES = {Lane.FLEX_DEMAND, Lane.FLEX_FIRST_STEPS}


def lanes_of(world: World) -> set[Lane]:
    """Lanes of all calls that the engines received."""
    return world.generator.lanes | world.scorer.lanes | {beam.lane for beam in world.generator.beams}


@pytest.mark.asyncio
@pytest.mark.parametrize("tier", [None, "auto", "default", "fast", "priority", "scale", "ultrafast", "flex"])
@pytest.mark.parametrize("path", BODIES)
async def test_every_tier_is_answered_and_only_flex_uses_flex_lanes(
    make_world: MakeWorld, path: str, tier: Any
) -> None:
    world = make_world()
    async with world.client as client:
        reply = await client.post(path, json=BODIES[path] | {"service_tier": tier})
    assert reply.status_code == 200
    assert lanes_of(world) <= (FLEX_LANES if tier == "flex" else {Lane.DEMAND, Lane.FIRST_STEPS})
    assert lanes_of(world)
    if path not in ("/v1/completions", "/v1/score"):
        assert reply.json()["service_tier"] == ("flex" if tier == "flex" else "default")


@pytest.mark.asyncio
@pytest.mark.parametrize("tier", ["foo", "Flex", "", 5, True, ["flex"]])
@pytest.mark.parametrize("path", BODIES)
async def test_an_invalid_tier_is_refused_by_its_path(world: World, path: str, tier: Any) -> None:
    async with world.client as client:
        reply = await client.post(path, json=BODIES[path] | {"service_tier": tier})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "service_tier")
    assert "'auto', 'default', 'flex'" in reply.json()["error"]["message"]


@pytest.mark.asyncio
async def test_streams_report_the_tier(world: World) -> None:
    async with world.client as client:
        chunks = (await client.post(CHAT, json=chat(stream=True, service_tier="flex"))).text
        events = (await client.post("/v1/responses", json=RESPONSES | {"stream": True, "service_tier": "flex"})).text
    received = [json.loads(line[6:]) for line in chunks.splitlines() if line.startswith("data: {")]
    assert len(received) > 3
    assert {chunk["service_tier"] for chunk in received} == {"flex"}
    received = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    whole_ones = [event["response"] for event in received if "response" in event]
    assert len(whole_ones) == 3
    assert {response["service_tier"] for response in whole_ones} == {"flex"}


@pytest.mark.asyncio
async def test_one_seed_gives_the_same_tree_in_either_tier(world: World) -> None:
    async with world.client as client:
        trees = [
            (await client.post("/v1/search", json=chat(seed=3, service_tier=tier))).json()["tree"]
            for tier in ("default", "flex")
        ]
    assert trees[0]["nodes"]
    assert trees[0] == trees[1]


@pytest.mark.asyncio
async def test_flex_requests_get_only_a_part_of_the_places(make_world: MakeWorld) -> None:
    """Three quarters by default, whoever has the other slots."""
    world = make_world(searches=4)
    async with busy(world, 3):
        refused = await Call(world, body_parts(service_tier="flex")).ended()
        assert (refused.status, refused.error["code"]) == (429, "resource_unavailable")
        assert (refused.error["type"], refused.error["param"]) == ("rate_limit_error", None)
        assert "fewer than 3 slots" in refused.error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        # Also when a thread parses the body; but mentioning the tier elsewhere in the body does not make it flex.
        long = await Call(world, body_parts(service_tier="flex", metadata={"padding": "x" * 8192})).ended()
        assert (long.status, long.error["code"]) == (429, "resource_unavailable")
        another = Call(world, body_parts(metadata={"service_tier": "flex"}))
        await until(lambda: world.service.running == 4)
        full_of_all = await Call(world, body_parts(service_tier="flex")).ended()
        assert (full_of_all.status, full_of_all.error["code"]) == (429, "rate_limit_exceeded")
    assert (await another.ended()).status == 200
    assert (await Call(world, body_parts(service_tier="flex")).ended()).status == 200


@pytest.mark.asyncio
async def test_queued_flex_requests_come_after_all_others(make_world: MakeWorld) -> None:
    world = make_world(searches=2, flex_places=0.5, queue={"places": 4, "seconds": 20})
    world.generator.gate.clear()
    flex = [Call(world, body_parts(service_tier="flex")) for _ in range(3)]
    await until(lambda: world.service.slots.waiting == 2)
    assert world.service.running == 1
    assert (await Call(world, body_parts(service_tier="flex")).ended()).error["code"] == "resource_unavailable"
    others = [Call(world, body_parts()) for _ in range(2)]
    await until(lambda: (world.service.running, world.service.slots.waiting) == (2, 3))
    await others[0].hang_up()
    await until(lambda: (world.service.running, world.service.slots.waiting) == (2, 2))
    world.generator.gate.set()
    for call in (others[1], *flex):
        assert (await call.ended()).status == 200
    world.assert_idle()


JSON = st.recursive(
    st.sampled_from(["flex", "service_tier", '"service_tier": "flex"', 'flex"', "default", 5, None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["service_tier", "flex", '"service_tier":"flex"', "model"]), inner)
    ),
    max_leaves=6,
)


@given(body=JSON, indent=st.sampled_from([None, 0, 2]))
def test_a_body_is_flex_if_its_top_level_field_says_so(body: Any, indent: int | None) -> None:
    raw = json.dumps(body, indent=indent).encode()
    own = isinstance(body, dict)
    assert asks_flex(raw) == (own and body.get("service_tier") == "flex")
    assert may_ask_flex(raw) or not asks_flex(raw)
    unsaid = own and body and body.get("service_tier") is None
    assert json.loads(flex_unless_said(raw)) == (body | {"service_tier": "flex"} if unsaid else body)


@pytest.mark.parametrize(
    "written", [r'"service_tier": "fl\u0065x"', r'"service\u005Ftier": "flex"', r'"\u0073ervice_tier":"flex"']
)
def test_flex_may_be_written_with_escapes(written: str) -> None:
    raw = b"{%b}" % written.encode()
    assert may_ask_flex(raw)
    assert asks_flex(raw)
    assert not may_ask_flex(json.dumps(chat(user="Größe: 5 < 6")).encode()), "other escapes cost no parsing"


def test_a_body_too_deep_to_be_written_again_stays_as_it_is() -> None:
    deep = b'{"a": ' + b"[" * 975 + b"]" * 975 + b"}"
    assert flex_unless_said(deep) == deep


@given(raw=st.binary(max_size=40))
def test_invalid_json_is_not_flex_and_stays_unchanged(raw: bytes) -> None:
    broken = b'{"service_tier": "flex", ' + raw + b"{"
    assert not asks_flex(broken)
    assert flex_unless_said(broken) == broken
