"""API keys: one record for each, made in one place. Controllers are told records, never keys."""

import hashlib
import hmac
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from deployments.config import KeyRecord

ENVIRONMENT = "BANYAN_API_KEYS"
MIN_KEY_CHARACTERS = 16
"""Records stand in config files and on Ray's dashboard: a short key could be guessed until its digest fits."""
SALT_CHARACTERS = 32


def key_digest(key: str) -> str:
    """What a key is known by: its SHA-256, as hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_record(key: str) -> KeyRecord:
    """What a controller is told about one key.

    The salt is derived with the key as the secret, so neither salt nor digest says anything about the other.

    Raises:
        ValueError: the key contains what an HTTP header cannot carry.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("an API key may contain printable ASCII without spaces only")
    salt = hmac.new(key.encode("ascii"), b"banyan cache salt", hashlib.sha256).hexdigest()
    return KeyRecord(digest=key_digest(key), cache_salt=salt[:SALT_CHARACTERS])


def read_records(file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[KeyRecord, ...]:
    """Records of the keys in ``file`` (one a line, ``#`` begins a comment) and in ``BANYAN_API_KEYS``
    (separated by commas); each key once, in the same order for the same keys.

    Raises:
        ValueError: a file or variable is given and cannot be read or holds no key, which would open the
            endpoint to all although keys were asked for; or a key is malformed or short.
    """
    keys: list[str] = []
    if file is not None:
        keys += _keys_of(file)
    if given := environment.get(ENVIRONMENT):
        named = [key.strip() for key in given.split(",") if key.strip()]
        if not named:
            raise ValueError(f"{ENVIRONMENT} is set and holds no key")
        keys += named
    return tuple(sorted(_records(keys), key=lambda record: record.digest))


def _records(keys: Iterable[str]) -> list[KeyRecord]:
    unique = set(keys)
    if any(len(key) < MIN_KEY_CHARACTERS for key in unique):
        raise ValueError(
            f"an API key must have at least {MIN_KEY_CHARACTERS} characters, for example: openssl rand -hex 32"
        )
    return [key_record(key) for key in unique]


def _keys_of(file: Path) -> list[str]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"http.api_keys_file {file.absolute()} cannot be read on {socket.gethostname()}: {reason}"
        ) from error
    keys = [key for line in content.splitlines() if (key := line.split("#", 1)[0].strip())]
    if not keys:
        raise ValueError(f"http.api_keys_file {file} holds no key")
    return keys
