"""API keys: one record for each, made in one place. Controllers are told records, never keys."""

import hashlib
import hmac
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from deployments.config import KeyLimits, KeyRecord
from deployments.store import ANONYMOUS

ENVIRONMENT = "BANYAN_API_KEYS"
MIN_KEY_CHARACTERS = 16
"""Records stand in config files and on Ray's dashboard: a short key could be guessed until its digest fits."""
SALT_CHARACTERS = 32
OWNER_CHARACTERS = 32
NO_LIMITS = KeyLimits()


def key_digest(key: str) -> str:
    """What a key is known by: its SHA-256, as hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_record(key: str, limits: KeyLimits = NO_LIMITS) -> KeyRecord:
    """What a controller is told about one key.

    The salt is derived with the key as the secret, so neither salt nor digest says anything about the other.

    Raises:
        ValueError: the key contains what an HTTP header cannot carry.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("an API key may contain printable ASCII without spaces only")
    salt = hmac.new(key.encode("ascii"), b"banyan cache salt", hashlib.sha256).hexdigest()
    return KeyRecord(digest=key_digest(key), cache_salt=salt[:SALT_CHARACTERS], limits=limits)


def store_owner(record: KeyRecord | None) -> str:
    """What the store calls whoever comes with that key; says neither its digest nor its salt."""
    if record is None:
        return ANONYMOUS
    name = hmac.new(record.cache_salt.encode("ascii"), b"banyan store owner", hashlib.sha256).hexdigest()
    return name[:OWNER_CHARACTERS]


def read_records(file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[KeyRecord, ...]:
    """Records of the keys in ``file`` (one a line, its limits behind it as ``name=value``, ``#`` begins a comment) and
    in ``BANYAN_API_KEYS`` (separated by commas); each key once, in the same order for the same keys.

    Raises:
        ValueError: a file or variable is given and cannot be read or holds no key, which would open the
            endpoint to all although keys were asked for; or a key is malformed or short, or its limits are.
    """
    keys: dict[str, KeyLimits] = {}
    if given := environment.get(ENVIRONMENT):
        named = [key.strip() for key in given.split(",") if key.strip()]
        if not named:
            raise ValueError(f"{ENVIRONMENT} is set and holds no key")
        keys |= dict.fromkeys(named, NO_LIMITS)
    if file is not None:
        keys |= _keys_of(file)  # over the variable's, which have no limits
    if any(len(key) < MIN_KEY_CHARACTERS for key in keys):
        raise ValueError(
            f"an API key must have at least {MIN_KEY_CHARACTERS} characters, for example: openssl rand -hex 32"
        )
    records = (key_record(key, limits) for key, limits in keys.items())
    return tuple(sorted(records, key=lambda record: record.digest))


def _keys_of(file: Path) -> dict[str, KeyLimits]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"http.api_keys_file {file.absolute()} cannot be read on {socket.gethostname()}: {reason}"
        ) from error
    keys: dict[str, KeyLimits] = {}
    for number, line in enumerate(content.splitlines(), 1):
        key, *words = line.split("#", 1)[0].split() or [""]
        if key:
            keys[key] = _limits(words, f"http.api_keys_file {file}, line {number}")
    if not keys:
        raise ValueError(f"http.api_keys_file {file} holds no key")
    return keys


def _limits(words: Sequence[str], where: str) -> KeyLimits:
    """``places=8 tokens_per_minute=200000`` as limits. No error repeats what is written: it could be of a key."""
    try:
        return KeyLimits.model_validate(
            {name: int(value) for name, _, value in (word.partition("=") for word in words)}
        )
    except ValueError:
        allowed = ", ".join(f"{name}=NUMBER" for name in KeyLimits.model_fields)
        raise ValueError(f"{where}: behind a key may stand its limits: {allowed}, each at least 1") from None
