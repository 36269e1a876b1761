"""Settings of a backend: the URLs of a model that another server serves, and how they are called."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from deployments.engines.settings import Delimiter, ReplicaSettings, Settings
from search.run.bill import Price

VOTE: dict[str, Any] = {"strategy": "self_consistency", "n": 8}
"""The default search in front of a backend without a reward model: every backend can do it."""


def _is_backend_url(given: str) -> str:
    try:
        parts = urlsplit(given)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not given.isascii() or not given.isprintable() or " " in given:
        raise ValueError("must be http://host:port or https://host, with the path of an OpenAI base URL if it has one")
    # Neither the messages nor `explained` repeat the URL: it may hold a key.
    if "@" in parts.netloc:
        raise ValueError("must not contain a user or a password: name the key in api_key_env or api_key_file")
    if parts.query or parts.fragment:
        raise ValueError("must have neither a query nor a fragment: a key belongs in api_key_env or api_key_file")
    return given.rstrip("/")


BackendUrl = Annotated[str, Field(max_length=2048), AfterValidator(_is_backend_url)]
"""``http://host:8000``, or with a path what OpenAI's clients call the base URL, such as ``https://host/v1``."""
Variable = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$", max_length=200)]
"""Name of an environment variable. In capitals, so that no key that was written there by mistake passes for one."""
API_KEY_ENV = (
    "Environment variable with the key that is sent as `Authorization: Bearer`. Every node that calls the backend "
    "needs it."
)
API_KEY_FILE = "File with that key, instead of a variable. Every node that calls the backend needs it."


class KeySettings(Settings):
    """Where a key is. The key itself is no setting: settings are printed, logged and sent."""

    api_key_env: Variable | None = Field(None, description=API_KEY_ENV)
    api_key_file: Path | None = Field(None, description=API_KEY_FILE)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("set api_key_env or api_key_file, not both")
        return self

    def read_key(self) -> SecretStr | None:
        """The key; None if none is named.

        Raises:
            ValueError: the variable is not set, the file cannot be read, or neither holds something that a header can
                carry. The message names the setting and has nothing of what was read.
        """
        if self.api_key_env is not None:
            name, text = f"api_key_env: the variable {self.api_key_env}", os.environ.get(self.api_key_env)
            if text is None:
                raise ValueError(f"{name} is not set")
        elif self.api_key_file is not None:
            name = f"api_key_file: the file {self.api_key_file}"
            try:
                data = self.api_key_file.expanduser().read_bytes()
            except OSError as error:
                raise ValueError(f"{name} cannot be read: {error.strerror}") from None
            text = data.decode("latin-1")
        else:
            return None
        key = text.strip()
        if not key or not (key.isascii() and key.isprintable()) or " " in key:
            raise ValueError(f"{name} must hold one key, of printable ASCII without blanks")
        return SecretStr(key)


class UrlSettings(KeySettings):
    """One of a backend's URLs. Its key is sent to this URL only."""

    url: BackendUrl
    weight: float = Field(1.0, gt=0, le=1000, description="Share of the calls, in proportion to the other URLs'.")


def _with_url(given: Any) -> Any:
    return {"url": given} if isinstance(given, str) else given


class PriceSettings(Settings):
    """What a backend's tokens cost, per million of them, in a currency of the operator's choice."""

    input: float = Field(ge=0, description="Price of a million prompt tokens.")
    output: float = Field(ge=0, description="Price of a million generated tokens.")
    cached_input: float | None = Field(
        None, ge=0, description="Price of a million prompt tokens that the backend had in its cache. Unset: as `input`."
    )


class BackendSettings(KeySettings):
    """The URLs of a model that another server serves, and how they are called."""

    url: BackendUrl | None = Field(
        None, description="Where the server is: `http://host:8000`, or the base URL of OpenAI clients."
    )
    urls: tuple[Annotated[UrlSettings, BeforeValidator(_with_url)], ...] = Field(
        (),
        max_length=64,
        description="Several instead, which serve the same model: each a URL, or a mapping of `url`, `weight`, and "
        "`api_key_env` or `api_key_file`.",
    )
    ca_file: Path | None = Field(
        None,
        description="File with the certificates (PEM) of the authorities that may have signed the server's. Unset: the "
        "system's. Certificates are always verified.",
    )
    attempts: int = Field(3, ge=1, le=10, description="Maximum attempts of a call that fails because of the server.")
    connect_s: float = Field(5.0, gt=0, le=60, description="Timeout of a connection, seconds.")
    reply_s: float = Field(
        300.0,
        gt=0,
        le=3600,
        description="Longest wait for the beginning of a reply, seconds. A reply that is not streamed begins when all "
        "of it is written.",
    )
    idle_s: float = Field(60.0, gt=0, le=3600, description="Longest pause within a reply that has begun, seconds.")
    max_reply_bytes: int = Field(16 << 20, ge=1 << 10, le=1 << 28, description="Maximum size of a reply, bytes.")
    max_calls: int = Field(
        256,
        ge=1,
        le=4096,
        description="Maximum concurrent calls at a URL. The number in use is found below it, by how the server does.",
    )
    calls_per_minute: int | None = Field(
        None, ge=1, description="Maximum calls in any minute, at all URLs together, of each process that calls them."
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Maximum tokens in any minute, prompts and generated ones, as `calls_per_minute`. A call counts "
        "with the most that it may take until the server says what it took.",
    )
    price: PriceSettings | None = Field(None, description="For the price in the bill of a search.")

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if (self.url is None) == (not self.urls):
            raise ValueError("set either url or urls")
        if len({each.url for each in self.urls}) < len(self.urls):
            raise ValueError("urls: each URL may be named once")
        return self

    @property
    def endpoints(self) -> tuple[UrlSettings, ...]:
        """All URLs, with the key of each."""
        shared: Mapping[str, Any] = {"api_key_env": self.api_key_env, "api_key_file": self.api_key_file}
        if self.url is not None:
            return (UrlSettings(url=self.url, **shared),)
        own = (each.api_key_env is not None or each.api_key_file is not None for each in self.urls)
        return tuple(
            each if has_own else each.model_copy(update=shared) for each, has_own in zip(self.urls, own, strict=True)
        )

    @property
    def token_price(self) -> Price | None:
        """The price for `search.run.bill.Prices`."""
        if (price := self.price) is None:
            return None
        return Price(price.input, price.output, price.input if price.cached_input is None else price.cached_input)

    def tls(self) -> ssl.SSLContext:
        """What connections are verified by.

        Raises:
            ValueError: ``ca_file`` has no certificates.
        """
        try:
            return ssl.create_default_context(cafile=None if self.ca_file is None else self.ca_file.expanduser())
        except OSError as error:  # ssl.SSLError among them
            reason = error.strerror or "it has no certificates in PEM"
            raise ValueError(f"ca_file: the file {self.ca_file} cannot be used: {reason}") from None


class UrlGeneratorSettings(BackendSettings):
    """A generator that another server serves, in place of an engine."""

    model: str | None = Field(
        None, min_length=1, description="The server's name of the model. Unset: the only one that it has."
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Directory or hub id of the model's tokenizer. With it prompts and paths are sent as token ids, to "
        "servers that take and return them (vLLM): paths continue exactly, and prompts are made as for an engine.",
    )
    served_name: str = Field("", description="Model name at the HTTP endpoint. Empty: the server's name of it.")
    step_delimiter: Delimiter = Field(
        "\n\n", min_length=1, description="Text that ends a reasoning step; it stays part of the step."
    )
    max_model_len: int = Field(
        0, ge=0, le=1_048_576, description="Context length, tokens. 0: as the server tells, else 8192."
    )
    replicas: ReplicaSettings = ReplicaSettings()
