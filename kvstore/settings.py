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
    """One LMCache server per node, shared by every generator replica on it: Banyan's, or one that is there (``host``).

    ``l2_adapters`` and ``lmcache_args`` reach the server's command line, where every user of the machine can read them:
    no secrets there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    enabled: bool = Field(True, description="Without it every replica keeps only its own prefix cache.")
    required: bool = Field(
        False, description="A generator whose node can have no server does not start; else it warns and shares nothing."
    )
    l1_size_gb: float = Field(0.5, ge=0.0625, le=8192, description="Host memory for KV, GiB. The process adds 0.5 GiB.")
    chunk_size: int = Field(
        32, ge=16, le=4096, multiple_of=16, description="Tokens kept together; a multiple of the engines' block size."
    )
    store: Literal["auto", "prefilled", "evicted"] = Field(
        "auto",
        description="What engines keep there: evicted, what an engine is about to lose; prefilled, that and prompts of "
        "which it had to compute least_tokens; auto, prefilled where others may make use of it (several generators, a "
        "second tier, users of the host), else evicted.",
    )
    least_tokens: int = Field(
        128,
        ge=16,
        le=1_048_576,
        description="The least number of tokens that an engine asks the server for or stores there: it computes fewer "
        "again sooner.",
    )
    l2_adapters: tuple[dict[str, Any], ...] = Field(
        (), description="Second tiers, as `lmcache server --l2-adapter` takes them: what nodes share without a GPU."
    )
    lmcache_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of `lmcache server`, by their names there with underscores: true and false as "
        "--name and --no-name, an object as JSON, a list as several values, one of objects as the argument repeated.",
    )

    host: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        max_length=253,
        description="An LMCache server that is there on each node, by the name or address that it has there; "
        "with port and http_port. Banyan then neither starts nor watches one.",
    )
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Engines connect here, on loopback or at the host; 0 chooses a free one, "
        "without which an update cannot start its server beside the old one.",
    )
    http_port: int = Field(0, ge=0, le=65535, description="Health, status and metrics; 0 chooses.")
    heartbeat_interval_s: float = Field(
        2.0, ge=0.2, le=40, description="An engine notices the server's loss and its return within about two of these."
    )
    start_timeout_s: float = Field(90.0, ge=5, le=600, description="The server must answer within this time.")
    idle_s: float = Field(
        300.0, ge=0, le=86_400, description="A server ends when no generator of its node has used it for so long."
    )
    stop_timeout_s: float = Field(5.0, ge=0, le=60, description="Grace between SIGTERM and SIGKILL.")

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
            raise ValueError(f"{', '.join(given)}: of a server that Banyan starts, not of an existing one (host)")
        return self
