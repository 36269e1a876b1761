"""HTTP as clients speak it: by raw bytes through the proxy's protocol and middleware, and by the routes alone."""

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_world import World, chat, served

from deployments.admission import protocol
from deployments.admission.keys import key_record

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"
H2C = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"]
MakeWorld = Callable[..., World]


async def raw(url: str, *parts: bytes, close: bool = False) -> bytes:
    """Sends each part in a packet of its own; returns everything that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    if close:
        writer.write_eof()
    async with asyncio.timeout(10):
        reply = await reader.read()
    writer.close()
    return reply


def head(*headers: str, path: str = CHAT, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def body(**fields: Any) -> tuple[str, bytes]:
    """The header of its length, and the body."""
    content = json.dumps(chat(**fields)).encode()
    return f"Content-Length: {len(content)}", content


@pytest.mark.parametrize("form", ["length", "chunked", "one packet"])
@pytest.mark.parametrize("stream", [False, True])
async def test_java_is_answered(world: World, form: str, stream: bool) -> None:
    length, content = body(stream=stream)
    async with served(world) as url:
        if form == "chunked":
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
            parts = [head(*H2C, "Transfer-Encoding: chunked", "Connection: close"), chunks]
        else:
            parts = [head(*H2C, length, "Connection: close"), content]
        reply = await raw(url, *([b"".join(parts)] if form == "one packet" else parts))
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert (b"[DONE]" if stream else b"boxed") in reply


async def test_http_1_0_gets_a_stream_without_chunks(world: World) -> None:
    length, content = body(stream=True)
    async with served(world) as url:
        headers, _, events = (await raw(url, head(length, version="1.0") + content)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert {line.split(b" ")[0] for line in events.splitlines() if line} == {b"data:"}
    assert events.rstrip().endswith(b"data: [DONE]")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_has_closed_its_sending_side_gets_its_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, version: str, stream: bool
) -> None:
    monkeypatch.setattr(protocol, "CHECK_S", 60.0)  # in which it is not yet asked whether it is there
    length, content = body(stream=stream)
    async with served(world) as url:
        reply = await raw(url, head(length, version=version) + content, close=True)
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert (b"[DONE]" if stream else b"boxed") in reply


async def test_head_is_get_without_a_body(make_world: MakeWorld) -> None:
    world = make_world(records=[key_record("k" * 20)])
    async with world.client as client:
        key = {"Authorization": f"Bearer {'k' * 20}"}
        for path in ("/health", "/v1/models", "/v1/models/m", "/v1/status", "/v1/models/other", CHAT, "/v1/nowhere"):
            got, headed = await client.get(path, headers=key), await client.head(path, headers=key)
            assert (headed.status_code, headed.content) == (got.status_code, b"")
            assert got.content
        assert (await client.head("/health")).status_code == 200
        assert (await client.head("/v1/models")).status_code == 401
    async with served(world) as url, httpx.AsyncClient(timeout=60) as client:
        assert (await client.head(f"{url}/health")).status_code == 200
        assert (await client.get(f"{url}/health")).status_code == 200


async def test_a_trailing_slash_is_no_other_route(make_world: MakeWorld) -> None:
    world = make_world(searches=1, keys=["k" * 20])
    async with world.client as client:
        assert (await client.get("/health/")).status_code == 200
        assert (await client.post(f"{CHAT}/", json=chat())).status_code == 401
        client.headers["Authorization"] = f"Bearer {'k' * 20}"
        assert (await client.post(f"{CHAT}/", json=chat())).json() | {"id": 0, "created": 0} | _varying() == (
            await client.post(CHAT, json=chat())
        ).json() | {"id": 0, "created": 0} | _varying()
        assert (await client.get("/v1/models/")).json()["data"]
        world.generator.gate.clear()
        working = asyncio.create_task(client.post(f"{CHAT}/", json=chat()))
        while not world.generator.running:
            await asyncio.sleep(0)
        assert (await client.post(f"{CHAT}/", json=chat())).status_code == 429, "it needs a slot all the same"
        world.generator.gate.set()
        assert (await working).status_code == 200
    transport = httpx.ASGITransport(world.app, root_path="/banyan")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/banyan/health/")).status_code == 200


def _varying() -> dict[str, Any]:
    """Parts of a reply that differ between equal requests."""
    return {"search": None, "search_id": None, "system_fingerprint": None}


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions/chat/completions", "/models"]
)
async def test_a_wrong_base_url_is_told_the_right_one(world: World, path: str) -> None:
    async with world.client as client:
        error = (await client.post(path, json=chat())).json()["error"]
        assert error["code"] == "unknown_url"
        assert "must be http://HOST:PORT/v1, with /v1 once" in error["message"]
        assert "base URL" not in (await client.get("/v1/nowhere")).json()["error"]["message"]
        assert "base URL" not in (await client.get(CHAT)).json()["error"]["message"]
    transport = httpx.ASGITransport(world.app, root_path="/banyan")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        error = (await client.post(f"/banyan{path}", json=chat())).json()["error"]
        assert "http://HOST:PORT/banyan/v1" in error["message"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "gzip, identity"])
async def test_a_compressed_body_is_refused_as_one(make_world: MakeWorld, tmp_path: Path, encoding: str) -> None:
    world = make_world(store={"path": str(tmp_path / "store")})
    headers = {"content-type": "application/json", "content-encoding": encoding}
    async with world.client as client:
        form = {"file": ("lines.jsonl", b"{}")}
        upload = await client.post(
            "/v1/files", files=form, data={"purpose": "batch"}, headers={"content-encoding": encoding}
        )
        assert (upload.status_code, upload.json()["error"]["code"]) == (415, "unsupported_media_type")
        for path in (CHAT, "/v1/responses", "/v1/score", "/v1/batches"):
            reply = await client.post(path, content=gzip.compress(json.dumps(chat()).encode()), headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")
            assert "must not be compressed" in reply.json()["error"]["message"]
        plain = await client.post(CHAT, json=chat(), headers={"content-encoding": "identity"})
    assert plain.status_code == 200


async def test_a_prompt_that_is_too_long_is_told_in_openais_words(world: World) -> None:
    beams = {"model": "m", "use_beam_search": True, "max_tokens": 8}
    async with world.client as client:
        for path, asked in (
            (CHAT, chat(messages=[{"role": "user", "content": "x" * 506}])),  # shorter than the context, but templated
            (CHAT, chat(messages=[{"role": "user", "content": "x" * 5000}])),
            ("/v1/responses", {"model": "m", "input": "x" * 5000}),
            ("/v1/completions", beams | {"prompt": "x" * 510}),
            ("/v1/completions", beams | {"prompt": "x" * 5000}),
        ):
            error = (await client.post(path, json=asked)).json()["error"]
            assert error["message"].startswith("This model's maximum context length is 512 tokens")
            assert error["code"] == "context_length_exceeded"
