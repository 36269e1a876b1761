"""HTTP as clients speak it, by raw bytes to Serve's proxy."""

import gzip
import json
import socket
from typing import Any

import httpx

from tests.serve.application import Application, problems, request

CHAT = "/v1/chat/completions"


def head(application: Application, *headers: str, path: str = CHAT, version: str = "1.1") -> bytes:
    own = (f"Host: {httpx.URL(application.url).host}", "Content-Type: application/json")
    key = f"Authorization: Bearer {application.key}"
    return "\r\n".join([f"POST {path} HTTP/{version}", *own, key, *headers, "", ""]).encode()


def body(**fields: Any) -> tuple[str, bytes]:
    """The header of its length, and the body."""
    content = json.dumps(request(problems(1, seed=51)[0], 1, **fields)).encode()
    return f"Content-Length: {len(content)}", content


def raw(application: Application, *parts: bytes, close: bool = False) -> bytes:
    """Sends each part in a packet of its own; returns everything that comes until the server closes the connection."""
    url = httpx.URL(application.url)
    with socket.create_connection((url.host, url.port), 60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        if close:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    return received


def is_answered(reply: bytes) -> bool:
    return b"HTTP/1.1 200 OK" in reply and b"data: [DONE]" in reply


def test_http_1_0_gets_a_stream_without_chunks(idle: Application) -> None:
    length, content = body(stream=True)
    reply = raw(idle, head(idle, length, version="1.0") + content)
    assert is_answered(reply)
    headers, _, events = reply.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert events.startswith((b"data: ", b": "))


def test_a_client_that_has_closed_its_sending_side_gets_its_answer(idle: Application) -> None:
    length, content = body(stream=True)
    assert is_answered(raw(idle, head(idle, length) + content, close=True))


def test_head_and_slashes(idle: Application) -> None:
    with idle.client(httpx.Timeout(60.0)) as client:
        for path in ("/health", "/v1/models"):
            reply = client.head(path)
            assert (reply.status_code, reply.content) == (200, b"")
        assert client.get("/v1/models/").status_code == 200
        assert client.post(f"{CHAT}/", json=request(problems(1, seed=51)[0], 1)).status_code == 200
        hint = client.post("/chat/completions", json={}).json()["error"]["message"]
        assert "/v1 once" in hint
        packed = gzip.compress(body()[1])
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        assert client.post(CHAT, content=packed, headers=headers).status_code == 415


def test_what_is_no_request_is_refused_and_closed(idle: Application) -> None:
    assert raw(idle, head(idle, "X-Pad: " + "x" * 400_000)).startswith(b"HTTP/1.1 431")
    with_body = head(idle, "Content-Length: 5", "Connection: close", path="/health").replace(b"POST", b"GET") + b"hello"
    assert raw(idle, with_body).startswith(b"HTTP/1.1 413")
