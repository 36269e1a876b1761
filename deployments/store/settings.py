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
    """All caps are of one API key; without keys, of all clients together."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    path: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        None,
        description="A directory that every node sees, and on which flock works. Unset: nothing is kept, and the "
        "routes say so.",
    )
    keep_s: float = Field(
        30 * DAY_S, ge=1, le=366 * DAY_S, description="From the upload of a file, and from the end of all others."
    )
    files_max: int = Field(1000, ge=1, le=100_000, description="Uploaded files.")
    file_bytes_max: int = Field(200 << 20, ge=1, le=1 << 34, description="Of one upload.")
    bytes_max: int = Field(10 << 30, ge=1, le=1 << 44, description="All files; with more, no upload and no new batch.")
    batches_max: int = Field(100, ge=1, le=10_000, description="Batches; for one more the oldest that has ended goes.")
    batch_lines_max: int = Field(50_000, ge=1, le=1_000_000, description="Requests of one batch.")
    batch_output_bytes_max: int = Field(
        2 << 30, ge=1, le=1 << 40, description="Results of one batch; with more it has failed, and keeps those it has."
    )
    batch_requests: int = Field(
        16, ge=1, le=4096, description="Requests of batches at work at once, of all keys together."
    )
    searches_max: int = Field(
        1000, ge=1, le=100_000, description="Searches and responses; for one more the oldest goes."
    )
    search_bytes_max: int = Field(
        8 << 20, ge=1, le=1 << 30, description="Events of one search; what follows is not kept."
    )
