"""However a path is written: a request that reaches a handler that costs has passed all that its route asks for.

Three programs read a path: the proxy's middleware, the controller's, and the router."""

import asyncio
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httptools
import httpx
import pytest
from fastapi.routing import APIRoute
from http_world import World
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from deployments.admission import proxy_bodies
from deployments.admission.limits import Bodies
from deployments.admission.middleware import slot_of
from deployments.admission.proxy import WORK, ProxyAdmission
from deployments.admission.proxy_bodies import UPLOADS, BodyLimits
from deployments.http.app import FEATURES
from deployments.http.endpoint import Endpoint
from deployments.http.files_and_batches import files

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
TEMPLATES = sorted(
    {route.path for feature in FEATURES for route in feature.router.routes if isinstance(route, APIRoute)}
)
PREFIXES = ("", "/banyan", "/v1", "/v1/files")
"""Of the application, as Serve's `route_prefix`."""
INSERTED = ["\n", "\r", "\0", "\t", " ", "\x7f", "\x85", "\u2028", "\xa0", "/", "//", "/.", "/..", ";", "\\", "%", "ａ"]
Message = dict[str, Any]
METHODS = st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "PUT", "OPTIONS", "DELETE"])
WAYS = st.sampled_from(["proxy", "controller", "job"])
MakeWorld = Callable[..., World]


@st.composite
def targets(draw: st.DrawFn) -> str:
    """The path of a route, written in a way that is its own or nearly."""
    template = draw(st.sampled_from([*WORK, *TEMPLATES]))
    path = draw(st.sampled_from(PREFIXES)) + template.replace(":path", "").format_map(_Filled())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.one_of(st.just(len(path)), st.integers(0, len(path))))
        char, rest = path[at : at + 1], path[at + 1 :]
        change = draw(st.sampled_from(["insert", "insert raw", "encode", "double", "case", "drop"]))
        if change == "insert raw":
            char = draw(st.sampled_from(INSERTED)) + char
        elif change == "insert":
            char = urllib.parse.quote(draw(st.sampled_from(INSERTED)), safe="") + char
        elif change == "encode":
            char = "".join(f"%{byte:02x}" for byte in char.encode())
        else:
            char = {"double": char * 2, "case": char.swapcase(), "drop": ""}[change]
        path = path[:at] + char + rest
    return path + draw(st.sampled_from(["", "", "/", "%0A", "%0A/", "/%0A", "?a=%0A", "#a"]))


class _Filled(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "an-id"


def path_of(target: str) -> str | None:
    """The path that uvicorn makes of a request target; None where it refuses the request."""
    try:
        raw: bytes = httptools.parse_url(target.encode()).path
        return urllib.parse.unquote(raw.decode("ascii"))
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
        return None


class Watched:
    """An endpoint behind the proxy's middleware. Checks what a request has passed when its body is read."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.bodies = BodyLimits(self.controller)
        self.proxy = ProxyAdmission(self.bodies)
        self.prefix = ""
        self.reached: set[str] = set()
        """Routes of work whose handlers have begun."""
        self.readers: set[str] = set()
        self._reader: str | None = None
        self._read = False
        prepared, read, form = Endpoint.prepared, Bodies.read, files._form

        async def watched(endpoint: Endpoint, request: Request, prepare: Any) -> Any:
            assert slot_of(request.scope).owner.name
            assert self.proxy._inside == self._by_proxy, "the proxy has counted it as work"
            self.reached.add(request.scope["route"].path)
            return await prepared(endpoint, request, prepare)

        async def reading(work: Callable[..., Any], *args: Any) -> Any:
            self._reader = work.__name__
            self.readers.add(self._reader)
            assert work is not form or self.bodies._uploads == self._by_proxy, "the proxy has counted it as an upload"
            try:
                return await work(*args)
            finally:
                self._reader = None

        monkeypatch.setattr(Endpoint, "prepared", watched)
        monkeypatch.setattr(Bodies, "read", lambda *args: reading(read, *args))
        monkeypatch.setattr(files, "_form", partial(reading, form))

    async def controller(self, scope: Message, receive: Any, send: Any) -> None:
        """Serve and one controller: Serve matches the application's prefix, and tells it by ``root_path``."""

        async def received() -> Message:
            assert self._read or self._reader, "the body is read by something that does not limit it"
            self._read = True
            message: Message = await receive()
            return message

        if scope["path"] == self.prefix or scope["path"].startswith(f"{self.prefix}/"):
            scope["root_path"] = self.prefix
            await self.world.app(scope, received, send)  # type: ignore[arg-type]

    async def ask(self, way: str, method: str, path: str) -> None:
        self._by_proxy, self._read = int(way == "proxy"), False
        parts: list[Message] = [{"type": "http.request", "body": b"{}", "more_body": False}]
        media = b"multipart/form-data; boundary=x" if "files" in path else b"application/json"
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", media), (b"host", b"localhost")],
            "client": ("192.0.2.1", 1),
        }

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()  # the client stays
            return parts.pop()

        async def send(_: Message) -> None:
            pass

        async with asyncio.timeout(20):
            await (self.proxy if way == "proxy" else self.controller)(scope, receive, send)

    async def ask_inside(self, method: str, target: str) -> None:
        """As a job, by a Serve handle."""
        self._by_proxy = 0
        with suppress(httpx.InvalidURL, httpx.UnsupportedProtocol):
            await self.world._inside.answer(method, target, b"{}")


@pytest.fixture
def watched(make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(make_world(store={"path": str(tmp_path)}), monkeypatch)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(target=targets(), prefix=st.sampled_from(PREFIXES), method=METHODS, way=WAYS)
@example(target=f"{CHAT}%0A", prefix="", method="POST", way="proxy")
@example(target=f"{CHAT}%0A", prefix="", method="POST", way="controller")
@example(target=f"{CHAT}%0A", prefix="", method="POST", way="job")
@example(target="/v1/score%0A/", prefix="", method="POST", way="proxy")
@example(target=f"/v1{UPLOADS}%0a", prefix="/v1", method="POST", way="proxy")
async def test_every_path_to_a_handler_that_costs_leads_through_the_gate(
    watched: Watched, target: str, prefix: str, method: str, way: str
) -> None:
    watched.prefix = prefix
    if way == "job":
        await watched.ask_inside(method, target)
    elif (path := path_of(target)) is not None:
        await watched.ask(way, method, path)


async def test_the_routes_that_cost_are_reached_by_their_own_paths(watched: Watched) -> None:
    for path in WORK:
        await watched.ask("proxy", "POST", path)
    assert watched.reached == set(WORK)
    await watched.ask("proxy", "POST", UPLOADS)
    await watched.ask("proxy", "POST", "/v1/batches")
    assert watched.readers == {"read", "_form"}


@pytest.mark.parametrize(
    ("prefix", "path", "status"),
    [
        ("", UPLOADS, 200),
        ("", f"{UPLOADS}/", 200),
        ("/banyan", f"/banyan{UPLOADS}", 200),
        ("/v1", f"/v1{UPLOADS}", 200),
        ("", f"/banyan{UPLOADS}", 413),
        ("", f"/v1{UPLOADS}", 413),
        ("", f"{UPLOADS}{UPLOADS}", 413),
        ("", f"/v1/models{UPLOADS}", 413),
        ("", f"{CHAT}{UPLOADS}", 413),
        ("", f"{UPLOADS}\n", 413),
        ("/banyan", f"/banyan/banyan{UPLOADS}", 413),
        ("/banyan", f"/banyan/{UPLOADS}/", 413),
    ],
)
async def test_only_the_route_of_uploads_gets_more_than_other_routes(
    monkeypatch: pytest.MonkeyPatch, prefix: str, path: str, status: int
) -> None:
    monkeypatch.setattr(proxy_bodies, "MAX_BODY_BYTES", 100)
    read, statuses = 0, []

    async def application(scope: Message, receive: Any, send: Any) -> None:
        nonlocal read
        scope["root_path"] = prefix
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            read += len(message["body"])
        await Response()(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 60, "more_body": read < 600}

    async def send(message: Message) -> None:
        statuses.append(message.get("status"))

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await BodyLimits(application)(scope, receive, send)  # type: ignore[arg-type]
    assert statuses[0] == status
    assert read == 600 if status == 200 else read <= 100


async def test_serve_tells_the_applications_prefix_before_it_receives() -> None:
    from ray.serve._private.common import DeploymentID, EndpointInfo
    from ray.serve._private.proxy import HTTPProxy
    from ray.serve._private.proxy_request_response import ASGIProxyRequest
    from ray.serve._private.proxy_router import ProxyRouter

    controller = DeploymentID("SearchController", "banyan")
    router = ProxyRouter(lambda *_: SimpleNamespace(deployment_id=controller))  # type: ignore[arg-type, return-value]
    router.update_routes({controller: EndpointInfo("/banyan")})
    proxy = HTTPProxy("node", "127.0.0.1", True, router, "proxy")
    headers = [(b"x-request-id", b"one")]
    scope = {"type": "http", "method": "POST", "path": f"/banyan{UPLOADS}", "root_path": "", "headers": headers}
    # The request is sent, and its body received, by the generator that this returns.
    proxy._get_response_handler_info(ASGIProxyRequest(scope, None, None))  # type: ignore[arg-type]
    assert scope["root_path"] == "/banyan"


@pytest.mark.parametrize("path", [*WORK, UPLOADS, "/v1/files/an-id/content", "/v1/status"])
async def test_there_is_nothing_behind_a_websocket(world: World, path: str) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": path, "root_path": "", "query_string": b"", "headers": []}
    await world.app(scope, receive, send)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["websocket.close"]
