"""What each of the fifteen attacks sends: one dose of it, by a key with small limits or without a key.

The numbers are those of the issues in which they were found. `A1` to `F15`: six kinds, from A (a request that ends its
engine) to F (looked up, then used). Further inputs of a kind belong into its dose.
"""

import asyncio
import json
import random
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.attacks.connections import Answer, Endpoint

MODEL = "banyan-arithmetic"
CHAT, COMPLETIONS, SCORE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/score", "/v1/responses"
FILES, BATCHES, SEARCHES = "/v1/files", "/v1/batches", "/v1/searches"
GREEDY = {"strategy": "greedy"}
HOLD_S = 10.0
"""How long readers and senders do nothing, in seconds."""
LOOK_EVERY_S = 0.01
"""Pause between two lists. Without one the attacker would take a core of the same machine."""
BODY_BYTES = 1_000_000
"""A body just below the limit as shipped."""
SCHEMA_CHARACTERS = 16_384
"""Characters that a schema may have."""
DIGITS = bytes(ord("0") + value % 10 for value in range(256))
Told = Counter[str]
"""What came back: the number of replies by status and code, and what else was seen."""


@dataclass(frozen=True)
class World:
    """The application under attack."""

    attackers: tuple[Endpoint, Endpoint]
    """Two keys with small limits, at the application's own controller."""
    anonymous: Endpoint | None = None
    """A controller without API keys."""
    labels: Endpoint | None = None
    """A controller whose reward model reads the path once for each step; with the first attacker's key."""
    store: Path | None = None
    """The directory of the first attacker's searches in the store, to damage them; None: its disk is not this
    machine's."""
    poison: str | None = None
    """A text on which the tests' own engines die."""

    @property
    def attacker(self) -> Endpoint:
        return self.attackers[0]


class Attack(NamedTuple):
    """One of the fifteen."""

    name: str
    """As in ``A1``."""
    what: str
    send: Callable[[World, random.Random], Awaitable[Told]]
    """Sends one dose and returns when it is over; may be cancelled."""
    at: Callable[[World], Endpoint | None]
    """The controller that is attacked; None where this application has none of the kind."""


ATTACKS: dict[str, Attack] = {}


def _attack(
    name: str, what: str, at: Callable[[World], Endpoint | None] = lambda world: world.attacker
) -> Callable[[Callable[[World, random.Random], Awaitable[Told]]], Callable[[World, random.Random], Awaitable[Told]]]:
    def added(send: Callable[[World, random.Random], Awaitable[Told]]) -> Any:
        ATTACKS[name] = Attack(name, what, send, at)
        return send

    return added


# A. A request that kills its engine is sent to the next one


@_attack("A1", "completions with two beams that skip the prefix cache, and a long new prompt")
async def _uncached_beams(world: World, rng: random.Random) -> Told:
    prompts = [_words(rng, 600) for _ in range(2)]
    return await _all(
        world.attacker.ask("POST", COMPLETIONS, _beams(prompt, skip_reading_prefix_cache=True)) for prompt in prompts
    )


@_attack("A2", "a text on which engines die", lambda world: world.attacker if world.poison else None)
async def _poison(world: World, rng: random.Random) -> Told:
    """In chat, a completion, a long search, a batch, and a path to be scored."""
    assert world.poison is not None
    poisonous = f"{_words(rng, 60)} {world.poison}"
    ask = world.attacker.ask
    route = rng.choice((CHAT, COMPLETIONS, SCORE, BATCHES))
    if route == CHAT:
        search = rng.choice((GREEDY, {"strategy": "beam_search", "n": 16, "m": 4}))
        return _told(await ask("POST", CHAT, _chat(poisonous, search)))
    if route == COMPLETIONS:
        return _told(await ask("POST", COMPLETIONS, _beams(poisonous)))
    if route == SCORE:
        return _told(await ask("POST", SCORE, {"question": "1 + 1?", "steps": ["2\n\n", poisonous]}))
    lines = [_chat(text, GREEDY) for text in (_words(rng, 40), poisonous, _words(rng, 40))]
    return await _batch(world.attacker, CHAT, lines, wait_s=60.0)


# B. Work on a loop, or a shared thread, before it is bounded or charged


@_attack("B3", "a JSON schema of 195 bounded integers, n = 256")
async def _many_integers(world: World, rng: random.Random) -> Told:
    names = [f"{_name(rng)}{index}" for index in range(195)]
    properties = {name: {"type": "integer", "minimum": 0, "maximum": 1000} for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return _told(await world.attacker.ask("POST", CHAT, _structured(_shortened(schema), 256, rng)))


@_attack("B4", "JSON schemas of 400 alternatives and of 900 optional properties, n = 16")
async def _dear_schemas(world: World, rng: random.Random) -> Told:
    first = rng.randint(1, 50)  # another schema each time, which no cache has
    lengths = {"anyOf": [{"type": "string", "minLength": first + index} for index in range(400)]}
    alternatives = {"type": "object", "properties": {"a": lengths}, "required": ["a"], "additionalProperties": False}
    names = [f"{_name(rng)[:1]}{index:x}" for index in range(900)]
    optional = {"type": "object", "properties": {name: {"const": 1} for name in names}, "additionalProperties": False}
    schemas = (alternatives, _shortened(optional))
    return await _all(world.attacker.ask("POST", CHAT, _structured(schema, 16, rng)) for schema in schemas)


@_attack("B5", "twelve bodies of a megabyte, bodies of batches, and lists by two owners")
async def _long_bodies(world: World, rng: random.Random) -> Told:
    bodies = _dear_bodies(rng, BODY_BYTES)
    asked = [world.attackers[index % 2].ask("POST", *bodies[index % len(bodies)]) for index in range(12)]
    metadata = {f"{_name(rng)}{index}": "a" for index in range(60_000)}
    batch = json.dumps({"input_file_id": "file-1", "metadata": metadata}).encode()
    asked += [attacker.ask("POST", BATCHES, batch) for attacker in world.attackers]
    asked += [attacker.ask("GET", f"{FILES}?limit=10000") for attacker in world.attackers for _ in range(8)]
    return await _all(asked)


@_attack("B6", "a path of a hundred steps, 122 kB, for a family that reads it once a step", lambda world: world.labels)
async def _long_path(world: World, rng: random.Random) -> Told:
    assert world.labels is not None
    steps = [f"{rng.randbytes(1220).translate(DIGITS).decode()}\n\n" for _ in range(100)]
    return _told(await world.labels.ask("POST", SCORE, {"question": "1 + 1?", "steps": steps}))


# C. The gate and the router read a path differently


@_attack("C7", "a line feed behind the path, four bodies of 2.8 MB")
async def _line_feed(world: World, rng: random.Random) -> Told:
    others = ("%0a", "/%0A", "%0D%0A", "%0A%0A", "%00", "%20", "%0A?")
    ends = ("%0A", "%0A", *rng.sample(others, 2))
    bodies = _dear_bodies(rng, 2_800_000)
    asked = [world.attacker.ask("POST", f"{path}{end}", body) for (path, body), end in zip(bodies, ends, strict=True)]
    asked.append(world.attacker.ask("POST", f"{rng.choice((FILES, BATCHES))}%0A", bodies[0][1]))
    return await _all(asked)


# D. Queues without an end between proxy and application


@_attack("D8", "48 downloads of 14 MB, and eight streams and trees, whose clients do not read")
async def _silent_readers(world: World, rng: random.Random) -> Told:
    file = await _uploaded(world.attacker, b"a" * 14_000_000)
    question, search = _words(rng, 40), {"strategy": "beam_search", "n": 16, "m": 4}
    asked: list[tuple[str, Any]] = [(f"{FILES}/{file}/content", None)] * 48
    asked += [(CHAT, {**_chat(question, search), "stream": True}), ("/v1/search", _chat(question, search))] * 4
    told = Told()

    async def read_nothing(path: str, body: Any) -> None:
        """Tries again where it is refused: a reply may count as sent although nobody has read it."""
        for _ in range(8):
            with suppress(OSError):
                async with world.attacker.unread(path, body) as begun:
                    if begun:
                        told["replies that began"] += 1
                        await asyncio.sleep(HOLD_S)
                        return
            await asyncio.sleep(0.5)
        told["replies that did not begin"] += 1

    try:
        await asyncio.gather(*(read_nothing(*each) for each in asked))
    finally:
        await world.attacker.ask("DELETE", f"{FILES}/{file}")
    return told


@_attack("D9", "32 uploads of 8 MB at once, half of them without an end")
async def _uploads(world: World, rng: random.Random) -> Told:
    form, headers = _form(b"{}\n" * 2_700_000)
    told = Told()

    async def upload(attacker: Endpoint) -> None:
        answer = await attacker.ask("POST", FILES, form, headers)
        told[str(answer)] += 1
        if answer.status == 200:
            await attacker.ask("DELETE", f"{FILES}/{answer.json['id']}")

    async with AsyncExitStack() as half:
        for attacker in world.attackers:
            for _ in range(8):
                await half.enter_async_context(attacker.half_sent(FILES, 200 << 20, headers))
        await asyncio.gather(*(upload(attacker) for attacker in world.attackers for _ in range(8)))
    return told


# E. Limits on requests where the work is in lines, tokens, properties


@_attack("E10", "a batch of 48 lines that ask for background")
async def _background_lines(world: World, rng: random.Random) -> Told:
    search = {"strategy": "beam_search", "n": 16, "m": 4}
    lines = [
        {"model": MODEL, "input": _words(rng, 40), "search": search, "background": True, "store": True}
        for _ in range(48)
    ]
    return await _batch(world.attacker, RESPONSES, lines, wait_s=30.0)


@_attack("E11", "metadata of a megabyte, addresses that are made up, tokens that are read again, /-/routes")
async def _uncounted(world: World, rng: random.Random) -> Told:
    metadata = {f"{index}": _words(rng, 9_000) for index in range(100)}
    asked = [
        world.attacker.ask("POST", RESPONSES, {"model": MODEL, "input": "1 + 1?", "search": GREEDY, **fields})
        for fields in ({"metadata": metadata}, {"metadata": {"a": _words(rng, 900_000)}})
    ]
    prompt = _words(rng, 300)
    asked += [
        world.attacker.ask("POST", COMPLETIONS, _beams(prompt, skip_reading_prefix_cache=True, max_tokens=64)),
        world.attacker.ask("POST", SCORE, {"question": "1 + 1?", "steps": [f"{index}\n\n" for index in range(100)]}),
    ]
    told = await _all(asked)
    nobody = world.attacker._replace(key=None, prefix="")
    told[f"/-/routes {await nobody.ask('GET', '/-/routes')}"] += 1
    if world.anonymous is not None:
        async with AsyncExitStack() as half:
            for index in range(300):
                forwarded = {"x-forwarded-for": f"10.1.{index // 250}.{index % 250}"}
                with suppress(OSError):
                    await half.enter_async_context(world.anonymous.half_sent(CHAT, 5_000, forwarded))
            await asyncio.sleep(1.0)
            told[f"beside made-up addresses {await world.anonymous.ask('POST', CHAT, _chat('1?', GREEDY))}"] += 1
    return told


# F. Looked up, then used


@_attack("F12", "lists while the oldest entries are removed")
async def _lists(world: World, rng: random.Random) -> Told:
    ask = world.attacker.ask
    told = Told()

    async def keep() -> None:
        for index in range(12):
            body = {**_chat(_words(rng, 20), GREEDY), "max_tokens": 8, "store": True}
            if index % 2:
                body = {"model": MODEL, "input": _words(rng, 20), "search": GREEDY, "max_output_tokens": 8}
            await ask("POST", RESPONSES if index % 2 else CHAT, body)
            if file := await _uploaded(world.attacker, b"{}\n"):
                await ask("DELETE", f"{FILES}/{file}")

    async def look(path: str) -> None:
        while not keeping.done():
            told[f"GET {path} {await ask('GET', path)}"] += 1
            await asyncio.sleep(LOOK_EVERY_S)

    keeping = asyncio.gather(keep(), keep())
    try:
        await asyncio.gather(*(look(path) for path in (SEARCHES, FILES, BATCHES)))
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    return told


@_attack("F13", "damaged replies and records of its own", lambda world: world.attacker if world.store else None)
async def _damaged(world: World, rng: random.Random) -> Told:
    assert world.store is not None
    ask = world.attacker.ask
    told = Told()
    for name in ("reply.json", "response.json", "begun.json", "record.json", "end.json"):
        body = {"model": MODEL, "input": _words(rng, 20), "search": GREEDY, "max_output_tokens": 8}
        response = (await ask("POST", RESPONSES, body)).json.get("id", "")
        found = list(world.store.glob(f"owners/*/searches/{response.removeprefix('resp_')}/{name}"))
        if not response or not found:
            told[f"{name} not found"] += 1
            continue
        found[0].write_bytes(rng.choice((b"", b"{", b"[]", b"\xff\xfe", b'{"id": 1}')))
        search = found[0].parent.name
        for path in (SEARCHES, f"{SEARCHES}/{search}", f"{SEARCHES}/{search}/events", f"{RESPONSES}/{response}"):
            told[f"{name}: GET {path.replace(search, 'ID')} {await ask('GET', path)}"] += 1
        again = {**body, "previous_response_id": response}
        told[f"{name}: previous_response_id {await ask('POST', RESPONSES, again)}"] += 1
        told[f"{name}: DELETE {await ask('DELETE', f'{RESPONSES}/{response}')}"] += 1
    return told


@_attack("F14", "X-Forwarded-For: jobs", lambda world: world.anonymous or world.attacker)
async def _as_a_job(world: World, rng: random.Random) -> Told:
    told = Told()
    for endpoint, who in ((world.anonymous, "without keys"), (world.attacker, "with a key")):
        if endpoint is None:
            continue
        for name in ("x-forwarded-for", "x-real-ip", "forwarded"):
            for value in ("jobs", "jobs, 10.0.0.1", "10.0.0.1, jobs"):
                answer = await endpoint.ask("GET", "/v1/status", headers={name: value})
                told[f"{who}, {name}: {value}: /v1/status {answer}"] += 1
    return told


@_attack("F15", "a path too long for the reward model")
async def _too_long(world: World, rng: random.Random) -> Told:
    """A full disk needs one, and has a test of its own."""
    paths = [
        [_words(rng, 3_000)],
        [f"{_words(rng, 30)}\n\n" for _ in range(100)],
        ["1\n\n", _words(rng, 200_000)],
    ]
    return await _all(world.attacker.ask("POST", SCORE, {"question": "1 + 1?", "steps": steps}) for steps in paths)


async def _all(asked: Iterable[Coroutine[Any, Any, Answer]]) -> Told:
    return Told(map(str, await asyncio.gather(*asked)))


def _told(answer: Answer) -> Told:
    return Told([str(answer)])


def _words(rng: random.Random, characters: int) -> str:
    """A new text of digits and words, of a token or two each."""
    return " ".join(rng.choices(("Take", "Add", "7", "12", "345", "then", "multiply by"), k=characters))[:characters]


def _name(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=3))


def _message(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _chat(text: Any, search: Mapping[str, Any] = GREEDY) -> dict[str, Any]:
    return {"model": MODEL, "messages": [_message(text)], "search": dict(search)}


def _beams(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "use_beam_search": True, "n": 2, "max_tokens": 8, **fields}


def _structured(schema: dict[str, Any], n: int, rng: random.Random) -> dict[str, Any]:
    format_ = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    asked = _chat(_words(rng, 40), {"strategy": "best_of_n", "n": n})
    return {**asked, "response_format": format_}


def _shortened(schema: dict[str, Any]) -> dict[str, Any]:
    """The same object with as many of its properties as a schema may have characters."""
    while len(json.dumps(schema, separators=(",", ":"))) > SCHEMA_CHARACTERS:
        name, _ = schema["properties"].popitem()
        if name in schema.get("required", ()):
            schema["required"].remove(name)
    return schema


def _dear_bodies(rng: random.Random, size: int) -> list[tuple[str, bytes]]:
    """Paths and bodies of ``size`` bytes that are refused once they have been parsed and tokenized."""
    digits = rng.randbytes(size).translate(DIGITS).decode()  # the dearest text for the embedded tokenizer
    parts = [digits[at : at + 1022] for at in range(0, size - 25_000, 1022)][:1024]
    steps = [digits[at : at + size // 101] for at in range(0, size, size // 101)][:100]
    texts = [{"type": "text", "text": digits[at : at + 20]} for at in range(0, size // 3, 20)]
    beams = {**_beams(""), "prompt": parts}
    bodies = ((COMPLETIONS, beams), (SCORE, {"question": "1 + 1?", "steps": steps}), (CHAT, _chat(texts)))
    found = [(path, json.dumps(body).encode()[:size]) for path, body in bodies]
    return [*found, found[1]]


def _form(content: bytes) -> tuple[bytes, Mapping[str, str]]:
    """A form that uploads a file, with its headers."""
    fields = (
        b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    return fields + content + b"\r\n--edge--\r\n", {"content-type": "multipart/form-data; boundary=edge"}


async def _uploaded(endpoint: Endpoint, content: bytes) -> str:
    """Uploads a file and returns its id; empty if it was refused."""
    form, headers = _form(content)
    answer = await endpoint.ask("POST", FILES, form, headers)
    return str(answer.json.get("id", "")) if answer.status == 200 else ""


async def _batch(endpoint: Endpoint, route: str, bodies: list[dict[str, Any]], wait_s: float) -> Told:
    """Runs a batch for ``wait_s`` at most, then cancels it; says how its lines ended."""
    lines = [
        {"custom_id": str(index), "method": "POST", "url": route, "body": body} for index, body in enumerate(bodies)
    ]
    file = await _uploaded(endpoint, "".join(json.dumps(line) + "\n" for line in lines).encode())
    asked = {"input_file_id": file, "endpoint": route, "completion_window": "24h"}
    begun = await endpoint.ask("POST", BATCHES, asked)
    if begun.status != 200:
        return _told(begun)
    path = f"{BATCHES}/{begun.json['id']}"
    batch: dict[str, Any] = {}
    try:
        async with asyncio.timeout(wait_s):
            while batch.get("status") not in ("completed", "failed", "expired", "cancelled"):
                await asyncio.sleep(0.5)
                batch = (await endpoint.ask("GET", path)).json
    except (TimeoutError, asyncio.CancelledError) as error:
        await endpoint.ask("POST", f"{path}/cancel")
        if isinstance(error, asyncio.CancelledError):
            raise
    told = Told({f"batch {batch.get('status')}": 1})
    for kind in ("output_file_id", "error_file_id"):
        if batch.get(kind):
            content = (await endpoint.ask("GET", f"{FILES}/{batch[kind]}/content")).body
            told.update(map(_line_end, content.splitlines()))
    return told


def _line_end(line: bytes) -> str:
    """How a line of a batch ended."""
    told = json.loads(line)
    response = told.get("response") or {}
    body = response.get("body") or {}
    error = told.get("error") or body.get("error") or {}
    state = error.get("code") or body.get("status", "")
    return " ".join(filter(None, ("line", str(response.get("status_code", "")), str(state))))
