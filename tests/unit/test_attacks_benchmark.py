"""What `benchmarks.attacks` sends, and the computations behind its figures."""

import asyncio
import json
import random
from typing import Any

import pytest

from benchmarks.attacks.__main__ import Half, Pair, claims_of
from benchmarks.attacks.catalog import ATTACKS, BODY_BYTES, Told, World, _dear_bodies, _shortened
from benchmarks.attacks.connections import Answer, Endpoint


@pytest.fixture
def anyone() -> Endpoint:
    return Endpoint("127.0.0.1", 1, key="k")


def measured(**changed: Any) -> dict[str, Any]:
    pair = {"beside_statuses": ["200"] * 3, "whole_after_s": 0.1}
    return {"B3": {"ratio": 1.2, "engines_replaced": 0, "pairs": [pair | changed.pop("pair", {})], **changed}}


def test_there_are_fifteen_attacks_of_six_kinds() -> None:
    kinds = {"A": (1, 2), "B": (3, 4, 5, 6), "C": (7,), "D": (8, 9), "E": (10, 11), "F": (12, 13, 14, 15)}
    assert [*ATTACKS] == [f"{kind}{number}" for kind, numbers in kinds.items() for number in numbers]


def test_an_attack_without_its_target_is_left_out(anyone: Endpoint) -> None:
    world = World((anyone, anyone))
    assert {name for name, attack in ATTACKS.items() if attack.at(world) is None} == {"A2", "B6", "F13"}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, []),
        ({"ratio": 3.01}, ["B3: beside over alone, median"]),
        ({"engines_replaced": 1}, ["B3: engines replaced"]),
        ({"pair": {"beside_statuses": ["200", "503 generator_unavailable"]}}, ["B3: small requests that failed"]),
        ({"pair": {"whole_after_s": None}}, ["B3: not whole afterwards"]),
    ],
)
def test_each_claim_fails_alone(change: dict[str, Any], broken: list[str]) -> None:
    assert [each["name"] for each in claims_of(measured(**change)) if not each["holds"]] == broken


def test_a_pair_compares_the_means_of_its_halves() -> None:
    alone, beside = Half([0.1, 0.2, 0.3], ["200"] * 3), Half([0.4] * 5, ["200"] * 5)
    assert Pair(alone, beside, Told(), {}, 0.0).ratio == pytest.approx(2.0)


@pytest.mark.parametrize("size", [BODY_BYTES, 2_800_000])
def test_long_bodies_are_json_of_at_most_their_size(size: int) -> None:
    for path, body in _dear_bodies(random.Random(1), size):
        assert path.startswith("/v1/")
        assert size // 3 < len(body) <= size
        json.loads(body)


def test_schemas_are_as_long_as_they_may_be() -> None:
    names = [f"name{index}" for index in range(2000)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": names}
    shortened = json.dumps(_shortened(schema), separators=(",", ":"))
    assert 16_000 < len(shortened) <= 16_384
    assert set(schema["required"]) == set(schema["properties"])


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Answer(200, b"{}")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\n\r\nno", Answer(429, b"no")),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", Answer(200, b"{}")),
        (b"", Answer(0)),
    ],
)
def test_replies_are_read_to_their_end(received: bytes, answer: Answer) -> None:
    heads: list[bytes] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(received)
        await writer.drain()
        writer.close()

    async def asked() -> Answer:
        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            return await Endpoint.of(f"http://{host}:{port}/other", "a key").ask("POST", "/v1/score%0A", {})

    assert asyncio.run(asked()) == answer
    assert heads[0].startswith(b"POST /other/v1/score%0A HTTP/1.1\r\n")
    assert b"authorization: Bearer a key\r\n" in heads[0]


def test_an_error_is_told_by_its_code() -> None:
    assert str(Answer(503, b'{"error": {"code": "generator_unavailable"}}')) == "503 generator_unavailable"
    assert str(Answer(404, b"[]")) == "404"
    assert str(Answer(0)) == "no reply"
