"""API keys fail closed: promised keys that are missing are an error, and a controller without a list of keys admits
nobody."""

import hashlib
import json
from pathlib import Path

import httpx
import pytest
from http_world import World, served

from deployments.admission.auth import ApiKeys
from deployments.admission.keys import key_record, read_records
from deployments.config import ControllerUserConfig, HttpSettings, KeyLimits
from deployments.startup.access import AccessError, read_user_config, require_keys
from search.answers.equivalence import AnswerMatcher

KEY = "a key of thirty-two digits".replace(" ", "-")
OTHER = "another-key-of-many-characters"


def test_a_record_reveals_neither_the_key_nor_the_salt() -> None:
    record = key_record(KEY)
    assert record.digest == hashlib.sha256(KEY.encode()).hexdigest()
    assert record.cache_salt not in record.digest
    assert record.cache_salt != key_record(OTHER).cache_salt
    assert record == key_record(KEY)
    assert KEY not in record.model_dump_json()


def test_key_records_do_not_depend_on_the_order_of_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{KEY}  # alice\n\n{OTHER}\n")
    records = read_records(file, {"BANYAN_API_KEYS": f" {OTHER}, {KEY},"})
    assert set(records) == {key_record(KEY), key_record(OTHER)}
    assert len(records) == 2
    file.write_text(f"{OTHER}\n{KEY}\n")
    assert read_records(file, {}) == records
    assert read_records(None, {}) == ()


def test_limits_follow_a_key_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY}  places=8 tokens_per_minute=200000 tokens=5000 nodes=64  # alice\n{OTHER}\n")
    records = {record.digest: record.limits for record in read_records(file, {"BANYAN_API_KEYS": KEY})}
    assert records == {
        key_record(KEY).digest: KeyLimits(places=8, tokens_per_minute=200_000, tokens=5000, nodes=64),
        key_record(OTHER).digest: KeyLimits(),
    }
    for wrong in ("places=0", "places=many", "paces=3", "places", "secret", "places=1.5", "operator=1"):
        file.write_text(f"# ours\n{KEY} {wrong}\n")
        with pytest.raises(ValueError, match=r"line 2: .*places=NUMBER") as refused:
            read_records(file, {})
        assert KEY not in str(refused.value)
        assert "secret" not in str(refused.value)


def test_an_operators_key_is_marked_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY} operator places=8  # us\n{OTHER}\n")
    records = {record.digest: record for record in read_records(file, {})}
    ours, other = records[key_record(KEY).digest], records[key_record(OTHER).digest]
    assert (ours.operator, ours.limits, other.operator) == (True, KeyLimits(places=8), False)
    assert ours.cache_salt == key_record(KEY).cache_salt, "who becomes an operator keeps what is stored"
    told = ControllerUserConfig(keys=tuple(records.values()))
    assert read_user_config(json.loads(json.dumps(told.model_dump(mode="json")))) == told


async def test_the_status_is_the_operators(matcher: AnswerMatcher) -> None:
    world = World(matcher, records=[key_record(KEY, operator=True), key_record(OTHER)])
    async with world.client as client:
        asked = {
            key: await client.get("/v1/status", headers={"Authorization": f"Bearer {key}"}) for key in (KEY, OTHER)
        }
        assert asked[KEY].status_code == 200
        assert asked[OTHER].status_code == 403
        error = asked[OTHER].json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "operator_only")
        assert (await client.get("/v1/models", headers={"Authorization": f"Bearer {OTHER}"})).status_code == 200


@pytest.mark.parametrize(
    ("address", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("192.0.2.7", 403), ("2001:db8::1", 403), ("", 403)],
)
async def test_without_keys_the_status_is_this_machines(matcher: AnswerMatcher, address: str, status: int) -> None:
    world = World(matcher)
    transport = httpx.ASGITransport(world.app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/v1/status")).status_code == status
        assert (await client.get("/v1/models")).status_code == 200


async def test_jobs_on_the_cluster_read_the_status(matcher: AnswerMatcher) -> None:
    world = World(matcher, records=[key_record(KEY)])
    assert (await world._inside.answer("GET", "/v1/status", b""))[0] == 200


@pytest.mark.parametrize("address", ["jobs", "job", "", "address ", "True", "127.0.0.1, jobs"])
async def test_no_address_makes_a_client_a_job(
    matcher: AnswerMatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Neither at the operator's check, nor where jobs write, nor in the jobs' share of places and bodies."""
    world = World(matcher, store={"path": str(tmp_path)})
    owners: list[str] = []
    monkeypatch.setattr(world.service.slots, "check", lambda owner, *_: owners.append(owner.name))
    asked = {"model": "m", "input": "6*7?"}
    transport = httpx.ASGITransport(world.app, client=(address, 0))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/v1/status")).status_code == 403
        assert (await client.post("/v1/responses", json=asked)).json()["store"] is True
    _, _, reply = await world._inside.answer("POST", "/v1/responses", json.dumps(asked).encode())
    assert json.loads(reply)["store"] is False
    of_client, of_job = set(owners[:2]), set(owners[2:])
    assert not of_client & of_job


async def test_a_forwarded_address_makes_no_job(matcher: AnswerMatcher) -> None:
    async with served(World(matcher)) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/v1/status")).status_code == 200
        for address in ("jobs", "8.8.8.8, jobs", "jobs:0", "[jobs]:0"):
            reply = await client.get("/v1/status", headers={"X-Forwarded-For": address})
            assert reply.status_code == 403, address


def test_promised_keys_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=r"api_keys_file .*missing cannot be read on .*: No such file"):
        read_records(missing, {})
    empty = tmp_path / "empty"
    empty.write_text("# nobody\n")
    with pytest.raises(ValueError, match="contains no key"):
        read_records(empty, {})
    with pytest.raises(ValueError, match="BANYAN_API_KEYS is set but contains no key"):
        read_records(None, {"BANYAN_API_KEYS": " , "})


@pytest.mark.parametrize("key", ["short", "with a space in the middle", "ümläüts-in-a-long-key"])
def test_keys_that_are_weak_or_cannot_be_sent_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="an API key") as refused:
        read_records(None, {"BANYAN_API_KEYS": key})
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    "written",
    [
        f'"{KEY},{OTHER}"',
        f"'{KEY}, {OTHER}'",
        f'"{KEY}","{OTHER}"',
        f'"{KEY}", "{OTHER}",',
        f"'{KEY}',{OTHER}",
        f"\ufeff{KEY},{OTHER}\r\n",
        f'\ufeff" {KEY} ,, {OTHER}"\r',
        f"{KEY},\n{OTHER}\n",
        f",{OTHER}\t,\xa0{KEY} ,",
    ],
)
def test_keys_are_read_as_env_files_and_secrets_have_them(written: str) -> None:
    assert {*read_records(None, {"BANYAN_API_KEYS": written})} == {key_record(KEY), key_record(OTHER)}


@pytest.mark.parametrize(
    "content",
    [
        f"\ufeff{KEY} operator\r\n{OTHER}\r\n".encode(),
        f"\ufeff# ours\r\n\r\n{KEY}\toperator \r\n \ufeff{OTHER}".encode(),
        f'"{KEY}" operator\n\n""\n\'{OTHER}\'  # alice\n'.encode(),
    ],
)
def test_a_file_of_keys_is_read_as_editors_write_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    assert {*read_records(file, {})} == {key_record(KEY, operator=True), key_record(OTHER)}


NO_KEYS = [
    f"export BANYAN_API_KEYS={KEY}",
    f"BANYAN_API_KEYS={KEY}",
    f'["{KEY}", "{OTHER}"]',
    f"{KEY};{OTHER}",
    f'"{KEY}',
    f"`{KEY}`",
    f"<{KEY}>",
    f"\u201c{KEY}\u201d",
    f'\\"{KEY}\\"',
    f"{{key: {KEY}}}",
    f"- {KEY}",
]
"""Texts with a key that are no key: as one they would be a key that nobody sends."""


@pytest.mark.parametrize("written", NO_KEYS)
def test_a_key_with_something_around_it_does_not_become_another_key(tmp_path: Path, written: str) -> None:
    with pytest.raises(ValueError, match="BANYAN_API_KEYS: an API key") as refused:
        read_records(None, {"BANYAN_API_KEYS": written})
    assert KEY not in str(refused.value)
    file = tmp_path / "keys"
    file.write_text(f"{OTHER}\n{written}\n")
    with pytest.raises(ValueError, match="line 2: ") as refused:
        read_records(file, {})
    assert KEY not in str(refused.value)


def test_a_file_has_one_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY},{OTHER}\n")
    with pytest.raises(ValueError, match="line 1: an API key consists of printable ASCII without blanks, quotes"):
        read_records(file, {})


@pytest.mark.parametrize("written", ['""', "' '", '"",""', "\ufeff", "','"])
def test_quotes_with_nothing_in_them_are_no_key(written: str) -> None:
    with pytest.raises(ValueError, match="BANYAN_API_KEYS is set but contains no key"):
        read_records(None, {"BANYAN_API_KEYS": written})


@pytest.mark.parametrize("key", ["c2VjcmV0IHNlY3JldCBzZWNyZXQ=", "sk-proj-0_1.2~3+4/5:6@7!8$9%^&*(|)==", KEY])
def test_keys_of_generators_are_keys(key: str) -> None:
    assert read_records(None, {"BANYAN_API_KEYS": key}) == (key_record(key),)


def test_without_a_list_of_keys_nobody_is_admitted() -> None:
    keys = ApiKeys()
    assert not keys.told
    assert keys.wanted
    assert not keys.record(KEY)
    keys.replace([key_record(KEY)])
    assert keys.told
    assert keys.record(KEY)
    keys.replace([key_record(OTHER)])
    assert not keys.record(KEY)
    assert keys.record(OTHER)
    keys.replace([])
    assert not keys.wanted


async def test_without_a_list_of_keys_only_health_is_answered(matcher: AnswerMatcher) -> None:
    world = World(matcher, keys=None)
    async with world.client as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"})).status_code == 401
        assert (await client.get("/health")).status_code == 200


def test_user_config_survives_json_and_its_errors_name_the_path() -> None:
    told = ControllerUserConfig(keys=(key_record(KEY),))
    assert read_user_config(json.loads(json.dumps(told.model_dump(mode="json")))) == told
    with pytest.raises(AccessError, match=r"user_config\.keys\.0\.digest"):
        read_user_config({"keys": [{"digest": KEY, "cache_salt": "0" * 32}]})
    with pytest.raises(AccessError, match=r"user_config\.keys\.0\.limits\.tokenz"):
        read_user_config({"keys": [key_record(KEY).model_dump() | {"limits": {"tokenz": 1}}]})
    with pytest.raises(AccessError, match=r"user_config\.kyes"):
        read_user_config({"kyes": []})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", None])
def test_loopback_needs_no_keys(host: str | None) -> None:
    require_keys((), HttpSettings(), host, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "banyan.example"])
def test_another_address_needs_keys_or_allow_anonymous(host: str) -> None:
    with pytest.raises(AccessError, match="allow_anonymous: true"):
        require_keys((), HttpSettings(), host, {})
    require_keys((), HttpSettings(allow_anonymous=True), host, {})
    require_keys((key_record(KEY),), HttpSettings(), host, {})


@pytest.mark.parametrize(
    ("http", "environment", "promise"),
    [
        (HttpSettings(api_keys_file=Path("/keys"), allow_anonymous=True), {}, "http.api_keys_file /keys"),
        (HttpSettings(allow_anonymous=True), {"BANYAN_API_KEYS": KEY}, "BANYAN_API_KEYS"),
    ],
)
def test_missing_promised_keys_are_an_error_on_any_address(
    http: HttpSettings, environment: dict[str, str], promise: str
) -> None:
    with pytest.raises(AccessError, match=promise) as refused:
        require_keys((), http, "127.0.0.1", environment)
    assert KEY not in str(refused.value)
