"""Web pages reach no endpoint without keys but from the origins that the operator names, which also get CORS."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_world import World, chat
from pydantic import ValidationError
from starlette.responses import Response

from deployments.admission.auth import ApiKeys
from deployments.admission.origins import CheckOrigin
from deployments.config import HttpSettings
from deployments.http.app import create_app
from search.answers.equivalence import AnswerMatcher

CHAT = "/v1/chat/completions"
PAGE = "http://localhost:3000"
KEY = "a-key-of-sixteen-characters"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


def error(reply: httpx.Response) -> tuple[int, str]:
    body = reply.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    return reply.status_code, body["code"]


async def got(world: World, path: str = "/v1/models", method: str = "GET", **headers: str) -> httpx.Response:
    async with world.client as client:
        return await client.request(method, path, headers={name.replace("_", "-"): headers[name] for name in headers})


class TestHost:
    """DNS rebinding makes the endpoint of a page's own origin; what is left of it is the name in ``Host``."""

    @pytest.mark.parametrize("path", ["/v1/models", "/v1/files", "/openapi.json", "/docs", "/nowhere"])
    @pytest.mark.parametrize(
        "host", ["rebind.example:8000", "127.0.0.1.rebind.example", "localhost.rebind.example", "[::1", ""]
    )
    async def test_another_name_is_refused(self, world: World, path: str, host: str) -> None:
        assert error(await got(world, path, host=host)) == (403, "host_not_allowed")

    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[::1]"),
            # A probe of Kubernetes names the pod's address, and no page can be rebound to one.
            *("10.1.2.3:8000", "[2001:db8::7]:8000"),
        ],
    )
    async def test_loopback_and_addresses_are_served(self, world: World, host: str) -> None:
        assert (await got(world, host=host)).status_code == 200

    async def test_a_second_name_does_not_hide_the_first(self, world: World) -> None:
        async with world.client as client:
            hosts = [("host", "localhost"), ("host", "rebind.example")]
            assert error(await client.get("/v1/models", headers=hosts)) == (403, "host_not_allowed")

    async def test_probes_need_no_name(self, world: World) -> None:
        assert (await got(world, "/health", host="banyan.default.svc")).status_code == 200

    async def test_with_keys_any_name_is_served(self, matcher: AnswerMatcher) -> None:
        world = World(matcher, keys=[KEY])
        reply = await got(world, host="banyan.example", authorization=f"Bearer {KEY}")
        assert reply.status_code == 200
        assert (await got(world, host="banyan.example")).status_code == 401

    async def test_the_operator_names_hosts_and_the_one_it_listens_at(self, matcher: AnswerMatcher) -> None:
        named = World(matcher, http={"allowed_origins": ["https://banyan.example"]})
        assert (await got(named, host="banyan.example")).status_code == 200
        assert (await got(named, host="other.example")).status_code == 403
        bound = httpx.ASGITransport(CheckOrigin(Response("served"), ApiKeys(()), host="Gpu-7"))
        async with httpx.AsyncClient(transport=bound) as client:
            assert (await client.get("http://gpu-7:8000")).text == "served"
            assert (await client.get("http://gpu-8:8000")).status_code == 403


class TestPages:
    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
            {"origin": "https://evil.example"},
            {"origin": PAGE, "sec-fetch-site": "same-site"},
            {"origin": "http://localhost.evil.example"},
            {"origin": "null"},
        ],
    )
    async def test_of_other_origins_are_refused_before_anything_is_read(
        self, matcher: AnswerMatcher, tmp_path: Path, headers: dict[str, str]
    ) -> None:
        world = World(matcher, store={"path": str(tmp_path)})
        form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}}
        async with world.client as client:
            assert error(await client.post("/v1/files", headers=headers, **form)) == (403, "origin_not_allowed")
            assert error(await client.post(CHAT, headers=headers, json=chat())) == (403, "origin_not_allowed")
            assert error(await client.get("/v1/files", headers=headers)) == (403, "origin_not_allowed")
            assert (await client.get("/v1/files")).json()["data"] == []
            uploaded = await client.post("/v1/files", headers={"origin": "http://localhost"}, **form)
        assert uploaded.status_code == 200, "the same form of the endpoint's own page"
        assert world.generator.calls == 0

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"sec-fetch-site": "none"},
            {"origin": "http://localhost", "sec-fetch-site": "same-origin"},
            {"origin": "https://localhost"},
        ],
    )
    async def test_our_own_and_programs_are_served(self, world: World, headers: dict[str, str]) -> None:
        async with world.client as client:
            assert (await client.post(CHAT, headers=headers, json=chat())).status_code == 200

    async def test_with_keys_a_page_that_has_one_is_served(self, matcher: AnswerMatcher) -> None:
        world = World(matcher, keys=[KEY])
        headers = {"origin": "https://page.example", "sec-fetch-site": "cross-site", "authorization": f"Bearer {KEY}"}
        async with world.client as client:
            reply = await client.post(CHAT, headers=headers, json=chat())
        assert reply.status_code == 200
        assert "access-control-allow-origin" not in reply.headers, "but no browser shows it the reply"

    async def test_refusals_are_counted(self, world: World) -> None:
        counted: list[tuple[int, str, int]] = []
        endpoint = replace(world.app.state.endpoint, refused=lambda *each: counted.append(each))
        transport = httpx.ASGITransport(create_app(endpoint, ApiKeys(())))
        async with httpx.AsyncClient(transport=transport, base_url="http://rebind.example") as client:
            await client.get("/v1/models")
        assert counted == [(403, "host_not_allowed", 1)]


class TestCors:
    @pytest.fixture(params=[(), (KEY,)], ids=["no keys", "keys"])
    def open_world(self, matcher: AnswerMatcher, request: pytest.FixtureRequest) -> World:
        return World(matcher, keys=request.param, http={"allowed_origins": [PAGE]})

    async def test_a_preflight_of_an_allowed_origin_is_answered(self, open_world: World) -> None:
        async with open_world.client as client:
            for path in (CHAT, "/v1/files", "/v1/files/file-1"):
                reply = await client.options(path, headers=PREFLIGHT)
                assert reply.status_code == 200
                assert reply.headers["access-control-allow-origin"] == PAGE
                assert {"GET", "POST", "DELETE"} <= set(reply.headers["access-control-allow-methods"].split(", "))
                allowed = reply.headers["access-control-allow-headers"].split(",")
                assert set(PREFLIGHT["Access-Control-Request-Headers"].split(",")) <= set(allowed)
                assert "origin" in reply.headers["vary"].lower()

    @pytest.mark.parametrize("origin", ["http://localhost:3001", "https://localhost:3000", "http://evil.example"])
    async def test_no_other_origin_is_told_anything(self, open_world: World, origin: str) -> None:
        async with open_world.client as client:
            for reply in (
                await client.options(CHAT, headers=PREFLIGHT | {"Origin": origin}),
                await client.post(CHAT, json=chat(), headers={"Origin": origin}),
            ):
                assert reply.status_code in (401, 403)
                assert not [name for name in reply.headers if name.startswith("access-control")]

    async def test_a_page_reads_replies_errors_and_the_headers_that_clients_read(self, open_world: World) -> None:
        headers = {"Origin": PAGE, "Sec-Fetch-Site": "cross-site", "Authorization": f"Bearer {KEY}"}
        async with open_world.client as client:
            for fields, status in (({}, 200), ({"stream": True}, 200), ({"n": 0}, 400)):
                reply = await client.post(CHAT, json=chat(**fields), headers=headers)
                assert reply.status_code == status
                assert reply.headers["access-control-allow-origin"] == PAGE
                exposed = reply.headers["access-control-expose-headers"].lower().split(", ")
                assert {"retry-after", "x-request-id"} <= set(exposed)
                assert "access-control-allow-credentials" not in reply.headers

    async def test_a_key_is_still_needed(self, matcher: AnswerMatcher) -> None:
        world = World(matcher, keys=[KEY], http={"allowed_origins": [PAGE]})
        async with world.client as client:
            reply = await client.post(CHAT, json=chat(), headers={"Origin": PAGE})
        assert error(reply) == (401, "invalid_api_key")
        assert reply.headers["access-control-allow-origin"] == PAGE

    async def test_every_origin_and_host_where_the_operator_says_so(self, matcher: AnswerMatcher) -> None:
        world = World(matcher, http={"allowed_origins": ["*"]})
        reply = await got(world, host="any.example", origin="https://any.example:9", sec_fetch_site="cross-site")
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "*")

    async def test_as_shipped_no_preflight_is_answered(self, world: World) -> None:
        async with world.client as client:
            reply = await client.options(CHAT, headers=PREFLIGHT)
        assert error(reply) == (403, "origin_not_allowed")

    @pytest.mark.parametrize(
        "origin",
        ["http://localhost:3000/", "https://a.example/app", "a.example", "HTTPS://a.example", "https://", "null", ""],
    )
    def test_what_is_no_origin_is_refused(self, origin: str) -> None:
        with pytest.raises(ValidationError, match="an origin is"):
            HttpSettings(allowed_origins=(origin,))

    @pytest.mark.parametrize("origin", ["https://a.example:8443", "app://obsidian.md", "http://[::1]:3000", "*"])
    def test_what_browsers_send_is_an_origin(self, origin: str) -> None:
        assert HttpSettings(allowed_origins=(origin,)).allowed_origins == (origin,)


async def test_the_documentation_loads_nothing_from_elsewhere(world: World) -> None:
    async with world.client as client:
        page = await client.get("/docs")
        assert page.status_code == 200
        addresses = re.findall(r"""(?:src|href)=["']([^"']*)|url: ["']([^"']*)""", page.text)
        local = [address for pair in addresses for address in pair if address and address != "data:,"]
        assert len(local) == 3
        for address in local:
            assert address.startswith("/")
            assert (await client.get(address)).status_code == 200, address
        assert "//" not in re.sub(r"(?m)^\s*//.*$|<!--.*?-->", "", page.text)
        assert '"validatorUrl": null' in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'self'")


async def test_the_documentation_is_served_below_a_prefix(world: World) -> None:
    transport = httpx.ASGITransport(world.app, root_path="/banyan")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = (await client.get("/banyan/docs")).text
        assert "'/banyan/openapi.json'" in page
        for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
            assert f'"/banyan/docs/files/{name}"' in page
            assert (await client.get(f"/banyan/docs/files/{name}")).status_code == 200
