"""Settings of the store: its directory, lifetimes and limits."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

DAY_S = 86_400


def _absolute(path: Path) -> Path:
    full = path.expanduser()
    if not full.is_absolute():
        raise ValueError("must be an absolute path, or begin with ~")
    return full


class StoreSettings(BaseModel):
    """Storage of files, batches, searches and responses. Limits hold for each API key; without keys, for all clients
    together."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    path: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        None,
        description="Directory that every node can access and on which flock works. Unset: nothing is stored, and the "
        "routes that need it answer 404.",
    )
    keep_s: float = Field(
        30 * DAY_S,
        ge=1,
        le=366 * DAY_S,
        description="Retention, seconds: of files from their upload, of everything else from its end.",
    )
    files_max: int = Field(1000, ge=1, le=100_000, description="Maximum number of uploaded files.")
    file_bytes_max: int = Field(200 << 20, ge=1, le=1 << 34, description="Maximum size of one upload, bytes.")
    bytes_max: int = Field(
        10 << 30,
        ge=1,
        le=1 << 44,
        description="Maximum size of all files, bytes; beyond it uploads and new batches are refused.",
    )
    batches_max: int = Field(
        100, ge=1, le=10_000, description="Maximum number of batches; beyond it the oldest finished batch is removed."
    )
    batch_lines_max: int = Field(50_000, ge=1, le=1_000_000, description="Maximum number of requests in one batch.")
    batch_output_bytes_max: int = Field(
        2 << 30,
        ge=1,
        le=1 << 40,
        description="Maximum size of one batch's results, bytes; beyond it the batch fails and keeps the results it "
        "has.",
    )
    batch_requests: int = Field(16, ge=1, le=4096, description="Maximum concurrent requests of batches, over all keys.")
    searches_max: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Maximum number of stored searches and responses; beyond it the oldest is removed.",
    )
    search_bytes_max: int = Field(
        8 << 20,
        ge=1,
        le=1 << 30,
        description="Maximum size of one search's events, bytes; further events are not stored.",
    )
