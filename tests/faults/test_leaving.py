"""Clients that hang up at any moment, or read slowly, leave nothing behind and slow no other client down."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.faults.load import without_writing_ahead
from tests.serve.application import Application, problems, request, until

LONG = {"strategy": "beam_search", "n": 64, "m": 4, "max_depth": 40}
LUCK = random.Random(2)
SOCKET_S = 60.0


@contextmanager
def connected(application: Application, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    """A plain connection, which the kernel closes at the end of the block."""
    address = urlsplit(application.url)
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(SOCKET_S)
    connection.connect((address.hostname, address.port))
    try:
        yield connection
    finally:
        connection.close()


def written(application: Application, seed: int, stream: bool, search: dict[str, object] = LONG) -> bytes:
    """A complete request as bytes."""
    body = json.dumps(request(problems(1, seed=seed, level=5)[0], seed, search=search, stream=stream)).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "Host: banyan\r\n"
        f"Authorization: Bearer {application.key}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def in_the_headers(application: Application, seed: int) -> None:
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=False)[:60])


def in_the_body(application: Application, seed: int) -> None:
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=False)[:-20])
        time.sleep(LUCK.uniform(0, 0.2))


def before_the_first_byte(application: Application, seed: int) -> None:
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=LUCK.random() < 0.5))


def some_time_later(application: Application, seed: int) -> None:
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=LUCK.random() < 0.5))
        time.sleep(LUCK.uniform(0, 1.5))


def with_a_reset(application: Application, seed: int) -> None:
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=True))
        time.sleep(LUCK.uniform(0, 0.5))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def in_the_stream(application: Application, seed: int) -> None:
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=True))
        received = b""
        while received.count(b"search_event") < 1 + seed % 5:
            piece = connection.recv(4096)
            assert piece, received[-200:]
            received += piece


def half_closed(application: Application, seed: int) -> None:
    """Closes its sending side, and later the connection."""
    with connected(application) as connection:
        connection.sendall(written(application, seed, stream=True))
        connection.shutdown(socket.SHUT_WR)
        time.sleep(LUCK.uniform(0, 0.5))


STAGES: tuple[Callable[[Application, int], None], ...] = (
    in_the_headers,
    in_the_body,
    before_the_first_byte,
    some_time_later,
    with_a_reset,
    in_the_stream,
    half_closed,
)


@pytest.mark.parametrize("leave", STAGES)
def test_clients_that_hang_up_leave_nothing(whole: Application, leave: Callable[[Application, int], None]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda seed: leave(whole, seed), range(8)):
            pass
    until(whole.is_whole, "nothing runs and nothing is left", 30.0)


@pytest.mark.parametrize("number", [80, pytest.param(1000, marks=pytest.mark.long)])
def test_what_is_written_ahead_for_searches_that_are_cancelled_is_given_up(whole: Application, number: int) -> None:
    """A fifth of the searches is cancelled at some moment; the others have the trees that they have undisturbed."""
    luck = random.Random(3)
    leaves = [luck.choice(STAGES[2:]) if luck.random() < 0.2 else None for _ in range(number)]
    questions = problems(40, seed=86)

    def search(index: int) -> Any:
        seed = index % len(questions)
        if (leave := leaves[index]) is not None:
            leave(whole, seed)
            return expected[seed]
        return whole.chat(questions[seed], 700 + seed, "/v1/search")["tree"]

    with without_writing_ahead(whole):
        expected = [reply["tree"] for reply in whole.trees(questions, seed=700)]
    before = whole.status()["generator"]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(search, range(number))) == [expected[index % len(questions)] for index in range(number)]
    until(whole.is_whole, "nothing runs and nothing is left", 60.0)
    after = whole.status()["generator"]
    for name in ("ahead_begun", "ahead_adopted", "ahead_unused_tokens"):
        assert sum(each[name] for each in after) > sum(each[name] for each in before)
    for each in after:
        assert each["generated_tokens"] == each["written_tokens"] + each["discarded_tokens"]
        assert each["branches_begun"] == sum(each[f"branches_{end}"] for end in ("finished", "aborted", "failed"))
        assert each["reserved_blocks"] == 0


def test_slow_readers_do_not_slow_others_and_their_searches_end(whole: Application) -> None:
    """Streams that are read at a few bytes per second: their searches end, and others do not wait for them."""
    questions = problems(8, seed=85)
    undisturbed = whole.trees(questions, seed=600)
    readers = 8
    enough = threading.Event()
    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(read_slowly, whole, seed, enough) for seed in range(readers)]
        until(lambda: whole.status()["searches"] >= 1, "the slow ones have begun", 30.0)
        assert [reply["tree"] for reply in whole.trees(questions, seed=600)] == [each["tree"] for each in undisturbed]
        until(lambda: whole.status()["searches"] == 0, "the slow ones' searches have ended", 150.0)
        assert not any(each.done() for each in reading), "their readers have not"
        enough.set()
        for each in reading:
            each.result()


def read_slowly(application: Application, seed: int, enough: threading.Event) -> None:
    with connected(application, receive_bytes=2048) as connection:
        connection.sendall(written(application, seed, stream=True))
        while not enough.wait(0.25):
            connection.recv(16)
