"""``banyan plan``: memory settings for engines that share a device."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from cluster.launch.config_file import app_config, read_config
from cluster.launch.errors import LaunchError
from kvstore.memory.device_memory import DoesNotFit, Share, split

if TYPE_CHECKING:
    from deployments.config import AppConfig

SIZE = TypeAdapter(ByteSize)
MAX_BYTES = 1 << 50


def show_plan(
    path: Path | None, memory: str | None, working: str, tokens: Mapping[str, float], console: Console
) -> None:
    """Prints the split of the memory and the settings for it.

    Raises:
        LaunchError: the configuration is wrong, its models do not fit, or their memory needs are unknown.
    """
    config = app_config(read_config(path))
    with console.status("reading the models"):
        shares, _, on_gpu = planned(config, memory, working, tokens)
    console.print(_table(shares))
    console.print("One replica of each, on the same device, which is otherwise empty. Settings for args:\n")
    console.print(yaml.safe_dump(settings(shares, on_gpu), sort_keys=False), soft_wrap=True, end="")


def planned(
    config: "AppConfig", memory: str | None, working: str, tokens: Mapping[str, float]
) -> tuple[list[Share], int, bool]:
    """Returns the shares, the total bytes, and whether this machine has a GPU.

    Raises:
        LaunchError: as `show_plan`.
    """
    from deployments.startup.memory_plan import device_bytes, roles_of

    device = device_bytes()
    whole = _size("--memory", memory) if memory is not None else device
    if whole is None:
        raise LaunchError("--memory: this machine has no GPU; give the memory that the engines share, such as 24GiB")
    try:
        return split(roles_of(config, _size("--working", working), tokens), whole), whole, device is not None
    except (DoesNotFit, RuntimeError) as error:  # EngineStartError is a RuntimeError
        raise LaunchError(str(error)) from error


def settings(shares: Sequence[Share], on_gpu: bool) -> dict[str, Any]:
    """The settings to write into the configuration."""
    found: dict[str, Any] = {}
    for share in shares:
        own: dict[str, Any] = {"kv_cache_memory_bytes": share.kv_bytes}
        if on_gpu:
            own["replicas"] = {"num_gpus": share.device}
        name, _, member = share.role.name.partition(".of.")
        if not member:
            found[name] = own
            continue
        several = found.setdefault(name, {"of": []})
        index = int(member.partition(".")[0])
        several["of"] += [{}] * (index - len(several["of"])) + [{"prm": own}]  # a function needs no memory
        if on_gpu:
            taken = several.get("replicas", {"num_gpus": 0.0})["num_gpus"]
            several["replicas"] = {"num_gpus": round(taken + share.device, 3)}
    return found


def _table(shares: Sequence[Share]) -> Table:
    table = Table("", *(share.role.name for share in shares), box=None)
    rows: dict[str, list[str]] = {
        "weights": [_readable(share.role.weight_bytes) for share in shares],
        "working memory (assumed)": [_readable(share.role.working_bytes) for share in shares],
        "KV": [_readable(share.kv_bytes) for share in shares],
        "KV per token": [f"{share.role.token_bytes:,.0f} B" for share in shares],
        "sequences of maximum length": [f"{share.sequences:,.1f} of {share.role.longest:,} tokens" for share in shares],
        "share of the device": [f"{share.device:.1%}" for share in shares],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _readable(size: int) -> str:
    return ByteSize(size).human_readable(separator=" ")


def _size(option: str, given: str) -> int:
    try:
        size = SIZE.validate_python(given)
    except ValidationError:
        size = ByteSize(0)
    if not 0 < size <= MAX_BYTES:
        raise LaunchError(f"{option}: a size such as 24GiB, at most 1PiB, not {given!r}")
    return int(size)
