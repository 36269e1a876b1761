"""Raw bytes at Serve's proxy, most of them no HTTP: it takes little memory, answers /health in time, and goes on."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import httpx
import psutil
import pytest

from deployments.admission.protocol import REQUEST_S
from tests.faults.processes import replicas
from tests.faults.variants import Variant
from tests.serve.application import problems, request, until

CHAT = "/v1/chat/completions"
SEED = 1
WORKERS = 12
MAX_GROWTH = 100 << 20
"""Bytes by which the proxy's memory may exceed its size before the first request."""
HEALTH_S = 1.0
"""Longest reply of /health."""
SAMPLE_S = 0.2
MAX_HELD = 200
"""Connections that are left open at a time."""
CLOSED_S = REQUEST_S + 10.0
"""Seconds after which a connection without a complete request has to be closed."""
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
REPLY_S = 2.0
"""Longest that an attack reads."""


class Target(NamedTuple):
    """The address under attack, and a valid request to it."""

    host: str
    port: int
    prefix: str
    key: str

    def head(self, *headers: str, method: str = "POST", path: str = CHAT) -> bytes:
        own = (f"Host: {self.host}", f"Authorization: Bearer {self.key}", "Content-Type: application/json")
        return "\r\n".join([f"{method} {self.prefix}{path} HTTP/1.1", *own, *headers, "", ""]).encode()

    def whole(self, rng: random.Random) -> bytes:
        """A valid request, of a search or of anything else."""
        if rng.random() < 0.5:
            return self.head(method="GET", path=rng.choice(("/health", "/v1/models", "/v1/nothing", "/v1/status")))
        search = {"strategy": "beam_search", "n": 4, "m": 2}
        asked = request(problems(1, seed=87, level=1)[0], 1, search=search, stream=rng.random() < 0.5)
        return self.post(json.dumps(asked).encode())

    def post(self, body: bytes, path: str = CHAT) -> bytes:
        return self.head(f"Content-Length: {len(body)}", path=path) + body


class Attacker:
    """Sends bytes, and counts the statuses of the replies."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.statuses: Counter[int] = Counter()
        self.held: set[asyncio.Task[None]] = set()
        self.not_closed = 0

    async def send(self, *parts: bytes, pause_s: float = 0.0, read_s: float = REPLY_S, eof: bool = False) -> None:
        """Sends the parts, reads for at most ``read_s``, and resets the connection."""
        reader, writer = await asyncio.open_connection(self.target.host, self.target.port)
        try:
            with suppress(ConnectionError):
                for part in parts:
                    writer.write(part)
                    await asyncio.wait_for(writer.drain(), REPLY_S)
                    await asyncio.sleep(pause_s)
                if eof:
                    writer.write_eof()
            await self._read(reader, read_s)
        except TimeoutError:
            pass  # the proxy does not read on
        finally:
            writer.transport.abort()

    async def hold(self, sent: bytes) -> None:
        """Leaves a connection open until the proxy closes it."""
        reader, writer = await asyncio.open_connection(self.target.host, self.target.port)
        try:
            writer.write(sent)
            if not await self._read(reader, CLOSED_S):
                self.not_closed += 1
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        """Returns whether the proxy has closed the connection."""
        received = b""
        try:
            async with asyncio.timeout(seconds):
                while part := await reader.read(1 << 16):
                    received += part
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        finally:
            self.statuses.update(int(status) for status in STATUS.findall(received))
        return True


Attack = Callable[[Attacker, random.Random, Target], Awaitable[None]]


async def garbage(at: Attacker, rng: random.Random, to: Target) -> None:
    await at.send(rng.randbytes(rng.randrange(1, 1 << rng.randrange(1, 20))), eof=rng.random() < 0.5)


async def mutated(at: Attacker, rng: random.Random, to: Target) -> None:
    sent = bytearray(to.whole(rng))
    for _ in range(rng.randrange(1, 8)):
        index = rng.randrange(len(sent))
        sent[index : index + rng.randrange(3)] = rng.choice(
            (rng.randbytes(rng.randrange(4)), b"\r\n", b"\n", b"\0", b":")
        )
    await at.send(bytes(sent), read_s=0.5)


async def truncated(at: Attacker, rng: random.Random, to: Target) -> None:
    sent = to.whole(rng)
    await at.send(sent[: rng.randrange(len(sent))], read_s=0.2, eof=rng.random() < 0.5)


async def abandoned(at: Attacker, rng: random.Random, to: Target) -> None:
    await at.send(to.whole(rng), read_s=0.1 * rng.random())


async def half_closed(at: Attacker, rng: random.Random, to: Target) -> None:
    await at.send(to.whole(rng), eof=True)


async def dripped(at: Attacker, rng: random.Random, to: Target) -> None:
    sent = to.whole(rng)[: rng.randrange(1, 200)]
    await at.send(*(bytes([byte]) for byte in sent), pause_s=0.01, read_s=0.0)


async def long_headers(at: Attacker, rng: random.Random, to: Target) -> None:
    line = b"X-Pad: " + b"x" * rng.randrange(1 << 12, 1 << 20) + b"\r\n"
    await at.send(to.head()[:-2], *[line] * rng.randrange(1, 32))


async def many_headers(at: Attacker, rng: random.Random, to: Target) -> None:
    await at.send(
        to.head()[:-2] + b"".join(b"x%d: %d\r\n" % (n, n) for n in range(rng.randrange(100, 20_000))) + b"\r\n"
    )


async def request_lines(at: Attacker, rng: random.Random, to: Target) -> None:
    method = rng.choice(("GET", "BREW", "CONNECT", "PRI", "TRACE", "get", "", "M-SEARCH", "G" * 70_000))
    target = rng.choice(
        ("*", "/%00", "/..%2f" * 9, "/" + "a" * 70_000, "http://a/health", "//", "", "/\x7f", "?#", "/é")
    )
    version = rng.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "RTSP/1.0", "", "HTTP/1.1 x"))
    await at.send(f"{method} {target} {version}\r\nHost: a\r\n\r\n".encode(), read_s=0.5)


async def pipelined(at: Attacker, rng: random.Random, to: Target) -> None:
    one = to.head(method="GET", path=rng.choice(("/health", "/v1/models", "/openapi.json", "/v1/nothing")))
    await at.send(one * rng.randrange(2, 300), read_s=rng.choice((0.0, REPLY_S)))


async def chunks(at: Attacker, rng: random.Random, to: Target) -> None:
    size = rng.choice((b"ffffffffffffffffff", b"-1", b"zz", b"", b"5;" + b"e" * 100_000, b"7fffffff", b"0x5", b"5 5"))
    rest = rng.choice((b"hello", b"hello" * 10_000, b"\r\n" * 100_000, b"0\r\n" + b"trailer: 1\r\n" * 20_000, b""))
    await at.send(to.head("Transfer-Encoding: chunked"), size + b"\r\n" + rest, read_s=0.5)


async def tiny_chunks(at: Attacker, rng: random.Random, to: Target) -> None:
    await at.send(to.head("Transfer-Encoding: chunked"), b"1\r\n[\r\n" * rng.randrange(1, 200_000), read_s=0.5)


async def upgrades(at: Attacker, rng: random.Random, to: Target) -> None:
    kind = rng.choice(("h2c", "websocket", "TLS/1.0", "x" * 1000))
    sent = to.head("Connection: Upgrade", f"Upgrade: {kind}", "Sec-WebSocket-Key: AAAA", "Sec-WebSocket-Version: 13")
    rest = rng.choice((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 1000, rng.randbytes(1 << 16), sent * 50))
    await at.send(sent, rest, read_s=0.5)


async def lengths(at: Attacker, rng: random.Random, to: Target) -> None:
    body = json.dumps({"model": "nobody's"}).encode()
    length = rng.choice(("-1", "+5", "0x10", str(10**30), "5, 6", "", str(len(body) - 3), str(len(body) + 9), "1e3"))
    more = rng.choice(((), ("Content-Length: 7",), ("Transfer-Encoding: chunked",), ("Expect: 100-continue",)))
    await at.send(to.head(f"Content-Length: {length}", *more) + body, read_s=0.5)


async def deep(at: Attacker, rng: random.Random, to: Target) -> None:
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = rng.randrange(50, 100_000)
    await at.send(to.post(b'{"a":' + opened * depth + b"1" + closed * depth + b"}"))


async def unread_body(at: Attacker, rng: random.Random, to: Target) -> None:
    method = rng.choice(("POST", "PUT", "GET", "DELETE"))
    path = rng.choice(("/health", "/v1/nothing", "/v1/files", CHAT, "/v1/batches"))
    mebibytes = rng.randrange(1, 24)
    stranger = to._replace(key=rng.choice((to.key, "guessed")))
    head = stranger.head(f"Content-Length: {mebibytes << 20}", method=method, path=path)
    await at.send(head, *[b"\0" * (1 << 20)] * mebibytes, read_s=0.5)


async def unread_replies(at: Attacker, rng: random.Random, to: Target) -> None:
    await at.send(to.head(method="GET", path="/openapi.json") * 60, pause_s=2 * rng.random(), read_s=0.0)


async def left_open(at: Attacker, rng: random.Random, to: Target) -> None:
    """Leaves a connection open with nothing, or with a part of a request's headers."""
    if len(at.held) < MAX_HELD:
        head = to.head()
        task = asyncio.create_task(at.hold(head[: rng.choice((0, rng.randrange(len(head) - 1)))]))
        at.held.add(task)
        task.add_done_callback(at.held.discard)


ATTACKS: tuple[Attack, ...] = (
    garbage,
    mutated,
    truncated,
    abandoned,
    half_closed,
    dripped,
    long_headers,
    many_headers,
    request_lines,
    pipelined,
    chunks,
    tiny_chunks,
    upgrades,
    lengths,
    deep,
    unread_body,
    unread_replies,
    left_open,
)


class Samples:
    """What is seen of the proxy from outside."""

    def __init__(self, target: Target, proxy: psutil.Process) -> None:
        self._target = target
        self._proxy = proxy
        self.rss: list[int] = []
        self.health_s: list[float] = []

    async def take(self) -> None:
        sent = f"GET /health HTTP/1.1\r\nHost: {self._target.host}\r\nConnection: close\r\n\r\n".encode()
        while True:
            self.rss.append(self._proxy.memory_info().rss)
            started = time.monotonic()
            reader, writer = await asyncio.open_connection(self._target.host, self._target.port)
            writer.write(sent)
            async with asyncio.timeout(60.0):
                reply = await reader.read()
            writer.close()
            self.health_s.append(time.monotonic() - started)
            assert reply.startswith(b"HTTP/1.1 200"), reply[:500]
            await asyncio.sleep(SAMPLE_S)


async def attacked(attacker: Attacker, samples: Samples, seconds: float) -> Counter[str]:
    """Attacks for ``seconds`` while samples are taken; returns the number of attacks by name."""
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + seconds

    async def work(seed: int) -> None:
        rng = random.Random(seed)
        order = [*ATTACKS]
        while time.monotonic() < deadline:
            rng.shuffle(order)
            for attack in order:
                counts[attack.__name__] += 1
                with suppress(ConnectionError):
                    await attack(attacker, rng, attacker.target)

    sampling = asyncio.create_task(samples.take())
    async with asyncio.TaskGroup() as group:
        for worker in range(WORKERS):
            group.create_task(work(SEED * WORKERS + worker))
    await asyncio.gather(*attacker.held)
    if not sampling.done():
        sampling.cancel()
    with suppress(asyncio.CancelledError):
        await sampling
    return counts


def proxy_process() -> psutil.Process:
    """Serve's proxy, below this process, which started Ray."""
    children = psutil.Process().children(recursive=True)
    [found] = [each for each in children if each.cmdline() and each.cmdline()[0].startswith("ray::ProxyActor")]
    return found


def test_raw_bytes_do_no_harm(limited: Variant, pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--fuzz-seconds")
    url = httpx.URL(limited.url)
    target = Target(url.host, url.port or 80, limited.prefix, limited.application.key)
    deployments = ("Generator", "ProcessRewardModel", "SearchController")
    engines = {each.process for each in replicas(*deployments)}
    proxy = proxy_process()
    before, connections = proxy.memory_info().rss, len(proxy.net_connections("tcp"))
    attacker = Attacker(target)
    samples = Samples(target, proxy)
    counts = asyncio.run(attacked(attacker, samples, seconds))
    slowest, growth = max(samples.health_s), max(samples.rss) - before
    print(f"\n{counts.total()} attacks in {seconds:g} s: {dict(sorted(counts.items()))}")
    print(f"statuses {dict(sorted(attacker.statuses.items()))}")
    print(f"proxy: {before >> 20} MiB before, at most {growth >> 20} more; /health: {len(samples.health_s)} replies, ")
    print(f"the slowest {slowest:.3f} s")
    assert counts.keys() == {attack.__name__ for attack in ATTACKS}
    assert [status for status in attacker.statuses if status >= 500] == []
    assert attacker.not_closed == 0, "connections without a request are closed"
    assert growth <= MAX_GROWTH
    assert slowest < HEALTH_S
    until(limited.is_idle, "nothing runs and nothing is left", 60.0)
    until(lambda: len(proxy.net_connections("tcp")) <= connections + 8, "the proxy has closed its connections", 30.0)
    reply = limited.post(CHAT, request(problems(1, seed=87)[0], 1, search={"strategy": "beam_search", "n": 4, "m": 2}))
    assert reply.status_code == 200, reply.text
    assert {each.process for each in replicas(*deployments)} == engines, "no replica was restarted"
    assert proxy.is_running()
