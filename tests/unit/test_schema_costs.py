"""What a schema costs is found out in a worker process, once, and what is too dear is refused with the figures."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deployments.service import schemas
from deployments.service.schemas import WORKER_SCRIPT, SchemaCosts, SchemaLimits, SchemasBusy, SchemaTooDear

pytestmark = pytest.mark.asyncio

LETTERS = ([chr(letter) for letter in range(32, 127)] + ["</s>"], "", 95)
TEXT = {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


DOZEN = closed(**{f"p{index}": {"type": ["string", "integer", "boolean"][index % 3]} for index in range(12)})


@pytest.fixture(scope="module")
def real() -> Iterator[SchemaCosts]:
    costs = SchemaCosts(lambda: LETTERS)
    yield costs
    costs.close()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        DOZEN,
        closed(**{f"group{index}": DOZEN for index in range(4)}),
        closed(**{f"p{index}": {"type": "string", "minLength": 1, "maxLength": 200 + index} for index in range(6)}),
        closed(**{f"p{index}": {"type": "integer", "minimum": 0, "maximum": 100} for index in range(50)}),
        closed(kind={"enum": [f"country {index}" for index in range(200)]}, rows={"type": "array", "items": DOZEN}),
        {"type": "object", "properties": {f"p{index}": TEXT for index in range(60)}, "additionalProperties": False},
        {"$ref": "#/$defs/a", "$defs": {"a": closed(next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]})}},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
async def test_ordinary_schemas_are_cheap(real: SchemaCosts, schema: dict[str, Any]) -> None:
    await real.check(json.dumps(schema))


LONG = [{"type": "string", "minLength": least} for least in range(1, 120)]
LISTS = [{"type": "array", "items": {"type": "integer"}, "minItems": least} for least in range(200)]


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": LONG},
        {"anyOf": LISTS},
        closed(**{f"p{index}": {"type": "boolean"} for index in range(100)}, last={"anyOf": LISTS}),
        closed(
            a={"type": "object", "properties": {"rare": {"anyOf": LISTS}} | {f"p{index}": TEXT for index in range(80)}}
        ),
        {"type": "object", "properties": {f"p{index}": {} for index in range(900)}, "additionalProperties": False},
        {"anyOf": [*({"const": index} for index in range(60)), closed(a={"anyOf": LISTS})]},
        {"type": "string", "minLength": 100_000},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
async def test_dear_ones_are_refused_with_what_is_allowed(real: SchemaCosts, schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooDear, match=r"at most .* to compile it, .* for each token of a branch are allowed"):
        await real.check(json.dumps(schema))
    await real.check(json.dumps(DOZEN))


async def test_what_no_text_satisfies_is_refused(real: SchemaCosts) -> None:
    with pytest.raises(SchemaTooDear, match="no text can satisfy it"):
        await real.check('{"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2}')


async def test_the_worker_limits_its_own_time(tmp_path: Path) -> None:
    script, limit = tmp_path / "worker.py", "signal.ITIMER_PROF, cpu_s"
    code = WORKER_SCRIPT.read_text()
    assert limit in code
    script.write_text(code.replace(limit, "signal.ITIMER_PROF, 0.4"))
    with closing(SchemaCosts(lambda: LETTERS, script)) as costs:
        with pytest.raises(SchemaTooDear, match=r"^takes .*CPU time.*; at most"):
            await costs.check(json.dumps({"anyOf": LISTS}))
        await costs.check('{"type":"boolean"}')


FAKE = """
import json, os, signal, sys, time
json.loads(sys.stdin.readline())
print("ready", flush=True)
for line in sys.stdin:
    schema = json.loads(line)
    with open({log!r}, "a") as log:
        log.write(schema + "\\n")
    tried = open({log!r}).read().split("\\n").count(schema)
    if schema.startswith("killed") or schema.startswith("unlucky") and tried == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if schema.startswith("overrun"):
        os.kill(os.getpid(), signal.SIGPROF)
    while schema.startswith("slow") and not os.path.exists({log!r} + ".go"):
        time.sleep(0.01)
    dear = schema.startswith("dear")
    print(json.dumps(dict(compile_s=5.5 if dear else 0.1, bytes=0, token_s=0, state_bytes=0)), flush=True)
"""


class Fake(SchemaCosts):
    """With a worker that knows what schemas cost by their names."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        self._log.touch()
        script = directory / "worker.py"
        script.write_text(FAKE.format(log=str(self._log)))
        super().__init__(lambda: LETTERS, script)

    @property
    def judged(self) -> list[str]:
        return self._log.read_text().split()

    def go(self) -> None:
        """Lets slow schemas end."""
        Path(f"{self._log}.go").touch()

    async def until_judging(self, schema: str) -> None:
        while schema not in self.judged:  # another process writes it
            await asyncio.sleep(0.01)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    costs = Fake(tmp_path)
    yield costs
    costs.close()


async def test_a_schema_is_judged_once(fake: Fake) -> None:
    await asyncio.gather(*(fake.check("cheap", f"owner {index % 3}") for index in range(20)))
    await fake.check("cheap")
    for _ in range(3):
        with pytest.raises(SchemaTooDear, match=r"^costs too much: 5\.5 s of CPU time .*; at most 1\.0 s of CPU time"):
            await fake.check("dear")
    assert fake.judged == ["cheap", "dear"]


async def test_what_is_remembered_is_bounded(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_KNOWN", 2)
    for schema in ("a", "b", "a", "c", "a", "b"):
        await fake.check(schema)
    assert fake.judged == ["a", "b", "c", "b"]


async def test_an_overrun_is_refused_and_the_next_schema_judged(fake: Fake) -> None:
    for schema, tries in (("overrun", 1), ("killed", 2)):
        with pytest.raises(SchemaTooDear, match="; at most"):
            await fake.check(schema)
        assert fake.judged.count(schema) == tries
        await fake.check(f"after_{schema}")


async def test_a_worker_that_something_else_killed_refuses_nothing(fake: Fake) -> None:
    await fake.check("unlucky")
    assert fake.judged == ["unlucky", "unlucky"]


async def test_owners_take_turns(fake: Fake) -> None:
    first = asyncio.create_task(fake.check("slow", "a"))
    await fake.until_judging("slow")
    others = [asyncio.create_task(fake.check(f"a{index}", "a")) for index in range(4)]
    await asyncio.sleep(0)
    last = asyncio.create_task(fake.check("b0", "b"))
    await asyncio.sleep(0)
    fake.go()
    await asyncio.gather(first, *others, last)
    assert fake.judged == ["slow", "b0", "a0", "a1", "a2", "a3"]


async def test_a_client_that_has_left_costs_nothing_more(fake: Fake) -> None:
    first = asyncio.create_task(fake.check("slow"))
    await fake.until_judging("slow")
    gone = asyncio.create_task(fake.check("gone"))
    await asyncio.sleep(0)
    for task in (first, gone):
        task.cancel()
    await asyncio.gather(first, gone, return_exceptions=True)
    fake.go()
    await fake.check("next")
    assert fake.judged == ["slow", "next"]


async def test_a_worker_that_hangs_is_replaced(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    await fake.check("cheap")
    assert fake._worker is not None
    hung = fake._worker._process
    assert hung is not None
    with monkeypatch.context() as patch:
        patch.setattr(schemas, "REPLY_S", 0.2)
        with pytest.raises(SchemasBusy):
            await fake.check("slow")
    fake.go()
    await fake.check("slow")
    assert hung.poll() is not None
    assert fake._worker._process is not hung
    # Whether the one that was killed had read it by then is a matter of time.
    assert fake.judged in (["cheap", "slow"], ["cheap", "slow", "slow"])


async def test_nobody_waits_without_end(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "WAIT_S", 0.1)
    with pytest.raises(SchemasBusy):
        await fake.check("slow")


async def test_limits_grow_with_the_vocabulary() -> None:
    assert SchemaLimits.of(150_000) == (16.0, 76 << 20, pytest.approx(0.005), 32 << 10)
