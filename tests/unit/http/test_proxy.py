"""The proxy drops headers with orders to Serve, and refuses requests that controllers would refuse."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from http_world import World, chat

from deployments.admission import proxy
from deployments.admission.errors import Busy
from deployments.admission.middleware import SPARE
from deployments.admission.proxy import (
    CAPACITY_HEADER,
    MESSAGES,
    RETRY_AFTER_S,
    DropOrders,
    HideApplications,
    ProxyAdmission,
    Room,
    is_harmless,
    middlewares,
)
from deployments.admission.proxy_bodies import BodyLimits
from deployments.admission.proxy_flow import ProxyFlow
from deployments.service.slots import NoSlot, Refused
from deployments.startup.environment import variables
from search.tools.import_path import imported

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
MakeWorld = Callable[..., World]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-request-disconnect-disabled", b"?1"),
        (b"X-Request-Disconnect-Disabled", b"?1"),
        (b"x_request_disconnect_disabled", b"?1"),
        (b"x-request-timeout-seconds", b"1"),
        (b"serve_multiplexed_model_id", b"a"),
        (b"serve-multiplexed-model-id", b"a"),
        (b"x-serve-router-replica", b"a"),
        (b"X-Banyan-Turned-Away", b"9"),
        (b"x-request-id", b"\xff"),
        (b"x-session-id", b"\xc3"),
    ],
)
async def test_serves_control_headers_and_invalid_utf8_are_dropped(name: bytes, value: bytes) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])

    kept = [(b"authorization", b"Bearer key"), (b"x-request-id", b"one"), (b"content-type", "ä".encode())]
    await DropOrders(app)({"type": "http", "headers": [kept[0], (name, value), *kept[1:]]}, None, None)  # type: ignore[arg-type]
    assert seen == [kept]


async def test_serve_loads_the_middleware_and_has_no_other_control_headers() -> None:
    path = variables()["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    assert imported(path) is middlewares
    expected = [ProxyFlow, DropOrders, HideApplications, ProxyAdmission, BodyLimits]
    assert [each.cls for each in middlewares()] == expected
    from ray.serve._private import constants

    orders = [value for name, value in vars(constants).items() if name.startswith("SERVE_HTTP_REQUEST_")]
    assert len(orders) >= 3
    # Clients may choose a request's id.
    assert [order for order in orders if is_harmless(order.encode(), b"1")] == [constants.SERVE_HTTP_REQUEST_ID_HEADER]
    assert not is_harmless(constants.SERVE_MULTIPLEXED_MODEL_ID.encode(), b"1")
    assert not is_harmless(f"{constants.SERVE_INGRESS_ROUTER_HEADER_PREFIX}x".encode(), b"1")


@pytest.mark.parametrize("root_path", ["", "/all"])
async def test_serve_tells_its_applications_to_nobody_and_its_health_to_anyone(root_path: str) -> None:
    from ray.serve._private.common import DeploymentID, EndpointInfo
    from ray.serve._private.proxy import HTTPProxy
    from ray.serve._private.proxy_router import ProxyRouter

    router = ProxyRouter(lambda *_: None)  # type: ignore[arg-type, return-value]
    router.update_routes({DeploymentID("d", "secret"): EndpointInfo("/secret")})
    app: Any = HTTPProxy("node", "127.0.0.1", True, router, "proxy")
    for each in middlewares():
        app = each.cls(app, *each.args, **each.kwargs)
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://localhost{root_path}") as client:
        assert (await client.get("/-/healthz")).text == "success"
        for method, path in (("GET", "routes"), ("POST", "routes"), ("GET", "%72outes"), ("GET", "routes?a")):
            reply = await client.request(method, f"/-/{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")
        for path in ("/-/routes/", "//-/routes", "/-/ROUTES", "/-/./routes", "/-/routes%0A"):
            assert (await client.get(path)).status_code == 404


async def test_serves_own_server_runs_the_protocol() -> None:
    from ray.serve._private.http_util import start_asgi_http_server
    from ray.serve.config import HTTPOptions

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    options = HTTPOptions(host="127.0.0.1", port=0)
    options.middlewares.extend(middlewares())  # as Serve does with what the callback returns
    serving, server = await start_asgi_http_server(app, options, event_loop=asyncio.get_running_loop())
    while not server.started:
        await asyncio.sleep(0.001)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    headers = "Host: x\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\nContent-Length: 5"
    writer.write(f"POST / HTTP/1.1\r\n{headers}\r\n\r\nhello".encode())
    async with asyncio.timeout(10):
        assert b"hello" in await reader.read()
    writer.close()
    server.should_exit = True
    await serving


def behind_proxy(world: World) -> World:
    world.app = ProxyAdmission(world.app)  # type: ignore[assignment]
    return world


async def test_the_proxy_refuses_only_what_the_controller_would_refuse(make_world: MakeWorld) -> None:
    world = behind_proxy(make_world(searches=2))
    async with world.client as client:
        first = await client.post(CHAT, json=chat())
        assert first.status_code == 200
        assert CAPACITY_HEADER not in first.headers
        world.generator.gate.clear()
        inside = [asyncio.create_task(client.post(CHAT, json=chat(seed=seed))) for seed in range(2)]
        while world.generator.running < 2:
            await asyncio.sleep(0)
        refused = await client.post(CHAT, json=chat())
        assert refused.json() == Busy(str(NoSlot(Refused.PLACES, 2, 1)), "places").body, (
            "by the controller, whose room is larger"
        )
        for path in ("/v1/models", "/v1/status"):
            assert (await client.get(path)).status_code == 200
        world.app._inside += SPARE  # type: ignore[attr-defined]  # type: ignore[attr-defined]  # requests on their way to the controller
        refused = await client.post(CHAT, json=chat())
        assert (refused.status_code, refused.json()) == (429, Busy(MESSAGES["places"], "places").body)
        assert refused.headers["retry-after"] == str(RETRY_AFTER_S)
        assert (await client.get("/v1/models")).status_code == 200
        world.app._inside -= SPARE  # type: ignore[attr-defined]
        world.generator.gate.set()
        assert {reply.status_code for reply in await asyncio.gather(*inside)} == {200}
        assert world.app._inside == 0  # type: ignore[attr-defined]
    world.assert_idle()


async def test_without_news_of_a_controller_the_proxy_admits_requests(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = behind_proxy(make_world(searches=1))
    async with world.client as client:
        world.app._inside = 100  # type: ignore[attr-defined]
        assert (await client.post(CHAT, json=chat())).status_code == 200
        assert (await client.post(CHAT, json=chat())).status_code == 429
        monkeypatch.setattr(proxy, "REMEMBERED_S", -1.0)
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_a_request_counts_only_once_its_body_is_complete() -> None:
    admission = ProxyAdmission(None)  # type: ignore[arg-type]
    messages = [{"type": "http.request", "body": b"x", "more_body": more} for more in (True, False)]
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            seen.append(admission._inside)
            if messages:
                await receive()

    async def receive() -> Any:
        return messages.pop(0)

    admission._app = app
    await admission({"type": "http", "method": "POST", "path": "/prefix" + CHAT, "headers": []}, receive, None)  # type: ignore[arg-type]
    assert (seen, admission._inside) == ([0, 0, 1], 0)


async def test_of_a_burst_only_as_many_as_there_is_room_for_are_passed_on() -> None:
    admission = ProxyAdmission(None)  # type: ignore[arg-type]
    admission._rooms["a"] = Room(5, time.monotonic())
    handed, release, statuses = [], asyncio.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        handed.append(await asyncio.create_task(receive()))  # in a later task, as Serve does
        await release.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    admission._app = app
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    burst = [asyncio.create_task(admission(dict(scope), receive, send)) for _ in range(50)]
    while statuses.count(429) < 45:
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*burst)
    assert (len(handed), statuses.count(429), admission._inside) == (5, 45, 0)


async def test_a_body_that_does_not_begin_is_passed_to_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "FIRST_PART_S", 0.01)
    passed = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(receive)

    async def receive() -> Any:
        await asyncio.Event().wait()

    admission = ProxyAdmission(app)
    await admission({"type": "http", "method": "POST", "path": CHAT, "headers": []}, receive, None)  # type: ignore[arg-type]
    assert (len(passed), admission._inside) == (1, 0)
