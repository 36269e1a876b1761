"""API keys and their records. Controllers get records, never keys."""

import hashlib
import hmac
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from deployments.admission.key_text import WHAT_A_KEY_IS, bare_key, bare_keys, is_key
from deployments.config import KeyLimits, KeyRecord
from deployments.store import ANONYMOUS

ENVIRONMENT = "BANYAN_API_KEYS"
MIN_KEY_CHARACTERS = 16
"""Records are visible in config files and on Ray's dashboard: a short key could be guessed from its digest."""
SALT_CHARACTERS = 32
OWNER_CHARACTERS = 32
OPERATOR = "operator"
"""Word behind a key in the file."""
NO_LIMITS = KeyLimits()


def key_digest(key: str) -> str:
    """Returns the SHA-256 of a key as hexadecimal digits. No slower hash is needed: keys have at least 16 characters,
    and every request computes it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_record(key: str, limits: KeyLimits = NO_LIMITS, operator: bool = False) -> KeyRecord:
    """Returns the record of one key.

    The salt is an HMAC with the key as its secret, so neither salt nor digest reveals the other.

    Raises:
        ValueError: the key is empty or has characters that no key may have.
    """
    if not is_key(key):
        raise ValueError(WHAT_A_KEY_IS)
    salt = hmac.new(key.encode("ascii"), b"banyan cache salt", hashlib.sha256).hexdigest()
    return KeyRecord(digest=key_digest(key), cache_salt=salt[:SALT_CHARACTERS], limits=limits, operator=operator)


def store_owner(record: KeyRecord | None) -> str:
    """Returns the store's owner name for a key; reveals neither its digest nor its salt."""
    if record is None:
        return ANONYMOUS
    name = hmac.new(record.cache_salt.encode("ascii"), b"banyan store owner", hashlib.sha256).hexdigest()
    return name[:OWNER_CHARACTERS]


def read_records(file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[KeyRecord, ...]:
    """Reads the keys of ``file`` and of ``BANYAN_API_KEYS`` and returns one record per key, sorted by digest.

    The file has one key a line, then its limits as ``name=value``, and ``operator`` if it is an operator's; ``#``
    begins a comment. The variable has keys separated by commas. A key, or the variable as a whole, may be in
    quotes, and a byte order mark does not matter.

    Raises:
        ValueError: a given file or variable cannot be read or has no key, which would open the endpoint to everyone
            although keys were configured; or a key is malformed or too short, or its limits are malformed.
    """
    keys: dict[str, tuple[KeyLimits, bool]] = {}
    if given := environment.get(ENVIRONMENT):
        if not (named := bare_keys(given)):
            raise ValueError(f"{ENVIRONMENT} is set but contains no key")
        for key in named:
            _check(key, ENVIRONMENT)
            keys[key] = NO_LIMITS, False
    if file is not None:
        keys |= _keys_of(file)  # the file wins: keys of the variable have no limits
    records = (key_record(key, limits, operator) for key, (limits, operator) in keys.items())
    return tuple(sorted(records, key=lambda record: record.digest))


def _keys_of(file: Path) -> dict[str, tuple[KeyLimits, bool]]:
    """The keys of a file, each with its limits and whether it is an operator's."""
    try:
        content = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"http.api_keys_file {file.absolute()} cannot be read on {socket.gethostname()}: {reason}"
        ) from error
    keys: dict[str, tuple[KeyLimits, bool]] = {}
    for number, line in enumerate(content.splitlines(), 1):
        text, *words = line.split("#", 1)[0].split() or [""]
        if key := bare_key(text):
            where = f"http.api_keys_file {file}, line {number}"
            _check(key, where)
            keys[key] = _limits([word for word in words if word != OPERATOR], where), OPERATOR in words
    if not keys:
        raise ValueError(f"http.api_keys_file {file} contains no key")
    return keys


def _check(key: str, where: str) -> None:
    """Raises ValueError if this can be no key. The message does not quote it."""
    if not is_key(key):
        raise ValueError(f"{where}: {WHAT_A_KEY_IS}")
    if len(key) < MIN_KEY_CHARACTERS:
        raise ValueError(
            f"{where}: an API key must have at least {MIN_KEY_CHARACTERS} characters, for example: openssl rand -hex 32"
        )


def _limits(words: Sequence[str], where: str) -> KeyLimits:
    """Parses ``places=8 tokens_per_minute=200000``. Errors do not quote the words: they could be part of a key."""
    try:
        return KeyLimits.model_validate(
            {name: int(value) for name, _, value in (word.partition("=") for word in words)}
        )
    except ValueError:
        allowed = ", ".join(f"{name}=NUMBER" for name in KeyLimits.model_fields)
        message = f"{where}: after a key only its limits may follow ({allowed}, each at least 1), and {OPERATOR}"
        raise ValueError(message) from None
