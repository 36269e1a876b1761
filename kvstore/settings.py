"""Settings of the node's KV cache server and of the engines that are its clients."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SET_BY_BANYAN = frozenset(
    {
        "host",
        "port",
        "http_host",
        "http_port",
        "l1_size_gb",
        "chunk_size",
        "l2_adapter",
        "supported_transfer_mode",
    }
)
"""Arguments of ``lmcache server`` that ``lmcache_args`` must not name: Banyan sets them, from other settings or to what
its engines require."""
_OWN_SERVER_SETTINGS = ("l1_size_gb", "l2_adapters", "lmcache_args", "idle_s", "stop_timeout_s")
"""Settings that apply only to a server that Banyan starts."""


class CacheSettings(BaseModel):
    """One LMCache server per node, shared by its generator replicas: started by Banyan, or an existing one (``host``).

    ``l2_adapters`` and ``lmcache_args`` must not contain secrets: they become part of the server's command line, which
    every user of the machine can read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    enabled: bool = Field(
        True,
        description="Whether nodes run an LMCache server. Without one, each replica has only its own prefix cache.",
    )
    required: bool = Field(
        False,
        description="Fail a generator's start if its node has no LMCache server; otherwise it logs a warning and "
        "shares nothing.",
    )
    l1_size_gb: float = Field(
        0.5, ge=0.0625, le=8192, description="Host memory for KV, GiB. The server process needs 0.5 GiB more."
    )
    chunk_size: int = Field(
        32,
        ge=16,
        le=4096,
        multiple_of=16,
        description="Tokens per chunk, the unit of storage and transfer; a multiple of the engines' block size.",
    )
    store: Literal["auto", "prefilled", "evicted"] = Field(
        "auto",
        description="What engines store: `evicted` stores KV that an engine is about to evict; `prefilled` also "
        "stores prompts of which at least least_tokens were computed; `auto` is `prefilled` where other "
        "engines can read it (several generators, a second tier, an external server), else `evicted`.",
    )
    least_tokens: int = Field(
        128,
        ge=16,
        le=1_048_576,
        description="Minimum number of tokens to look up or store: computing fewer is faster than fetching them.",
    )
    l2_adapters: tuple[dict[str, Any], ...] = Field(
        (),
        description="Second storage tiers, in the form of `lmcache server --l2-adapter`; nodes share KV through "
        "them without a GPU.",
    )
    lmcache_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of `lmcache server`, with underscores in their names. true and false become "
        "--name and --no-name, an object becomes JSON, a list several values, and a list of objects a "
        "repeated argument.",
    )

    host: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        max_length=253,
        description="Host name or address of an existing LMCache server on each node, together with `port` and "
        "`http_port`. Banyan then neither starts nor monitors one.",
    )
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port to which engines connect, on loopback or at `host`. 0 chooses a free one. With a fixed "
        "port, an update that changes the server cannot start the new one while the old one runs.",
    )
    http_port: int = Field(0, ge=0, le=65535, description="Port for health, status and metrics; 0 chooses a free one.")
    heartbeat_interval_s: float = Field(
        2.0,
        ge=0.2,
        le=40,
        description="Heartbeat interval, seconds. An engine notices the loss or return of its server within about "
        "two intervals.",
    )
    start_timeout_s: float = Field(90.0, ge=5, le=600, description="Startup timeout of the server, seconds.")
    idle_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="Stop a server that no generator of its node has used for this many seconds.",
    )
    stop_timeout_s: float = Field(
        5.0, ge=0, le=60, description="Seconds between SIGTERM and SIGKILL when the server is stopped."
    )

    @field_validator("lmcache_args")
    @classmethod
    def _refuse_reserved(cls, given: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(name for name in given if name.replace("-", "_") in SET_BY_BANYAN):
            raise ValueError(
                f"{', '.join(own)}: set by Banyan itself, from another setting or to what its engines require"
            )
        return given

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if not self.host:
            return self
        if lacking := [name for name in ("port", "http_port") if not getattr(self, name)]:
            raise ValueError(f"{' and '.join(lacking)}: must be given with host, whose server Banyan does not start")
        unset = type(self)()
        if given := [name for name in _OWN_SERVER_SETTINGS if getattr(self, name) != getattr(unset, name)]:
            raise ValueError(
                f"{', '.join(given)}: only for a server that Banyan starts, not for an existing one (host)"
            )
        return self
