"""What a backend's settings allow, and that no key is in an error about them, nor in their dump."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.backends.pool import Pool
from deployments.backends.prm_settings import UrlPrmSettings
from deployments.backends.settings import BackendSettings
from deployments.config import AppConfig
from search.run.bill import Price, Prices

KEY = "sk-never-seen-4711"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "set either url or urls"),
        ({"url": "http://one", "urls": ["http://two"]}, "set either url or urls"),
        ({"urls": ["http://one", "http://one/"]}, "each URL may be named once"),
        ({"url": "ftp://one"}, "must be http://host:port"),
        ({"url": "http://one two"}, "must be http://host:port"),
        ({"url": "http://one:99999"}, "must be http://host:port"),
        ({"url": f"https://user:{KEY}@one"}, "api_key_env or api_key_file"),
        ({"urls": [f"https://one?key={KEY}"]}, "api_key_env or api_key_file"),
        ({"url": "https://one", "api_key": KEY}, "no such setting"),
        ({"url": "https://one", "api_key_env": KEY}, "pattern"),
        ({"url": "https://one", "api_key_env": "A", "api_key_file": "b"}, "not both"),
    ],
)
def test_wrong_settings_are_refused_without_what_may_be_a_key(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told) as caught:
        BackendSettings(**given)
    shown = f"{caught.value}{caught.value!r}{caught.value.errors()}"
    assert KEY not in shown


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "api_key_env: the variable NOT_SET_ANYWHERE is not set"),
        ({"api_key_env": "TWO_KEYS"}, "TWO_KEYS must hold one key"),
        ({"api_key_file": "/no/such/file"}, "api_key_file: the file /no/such/file cannot be read"),
        ({"ca_file": __file__}, "ca_file: the file .* cannot be used"),
        ({"ca_file": "/no/such/file"}, "ca_file: the file /no/such/file cannot be used"),
    ],
)
def test_a_key_or_certificate_that_cannot_be_read_is_told_by_its_setting(
    setting: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWO_KEYS", f"{KEY} {KEY}")
    with pytest.raises(ValueError, match=told) as caught:
        Pool(BackendSettings(url="http://one", **setting))
    assert KEY not in str(caught.value)


def test_a_key_is_in_no_dump_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    settings = BackendSettings(url="http://one/v1/", api_key_env="THE_KEY")
    key = settings.endpoints[0].read_key()
    assert key is not None
    assert key.get_secret_value() == KEY
    assert KEY not in f"{settings!r} {settings.model_dump_json()} {key!r} {vars(Pool(settings)._endpoints[0])}"


def test_a_reward_model_behind_a_url_is_part_of_the_settings_tree() -> None:
    prm = {"url": "http://one", "format": {"family": "step_head"}, "price": {"input": 2, "output": 8}}
    config = AppConfig.model_validate({"prm": prm})
    assert isinstance(config.prm, UrlPrmSettings)
    assert AppConfig.model_validate(config.model_dump()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.prices == Prices(None, Price(2, 8, 2))
    assert "prm" not in config.engines
    with pytest.raises(ValidationError, match=r"prm\.format\.max_length\n  no such setting"):
        AppConfig.model_validate({"prm": prm | {"format": {"family": "step_head", "max_length": 1}}})
