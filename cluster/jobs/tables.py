"""Writes results as Parquet: one row for each line of the output, a few hundred rows at a time."""

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from cluster.jobs.outputs import read_lines
from search.run.report import SearchCost

ROWS = 512
"""Rows held in memory at once."""

PATHS = pa.list_(
    pa.struct(
        {
            "answer": pa.string(),
            "group": pa.int64(),
            "right": pa.bool_(),
            "score": pa.float64(),
            "votes": pa.float64(),
            "samples": pa.int64(),
        }
    )
)
RESULTS = pa.schema(
    {
        "line": pa.int64(),
        "problem_id": pa.string(),
        "level": pa.string(),
        "problem": pa.string(),
        "expected": pa.string(),
        "answer": pa.string(),
        "right": pa.bool_(),
        "in_pool": pa.bool_(),
        "text": pa.string(),
        "finish_reason": pa.string(),
        "stop_reason": pa.string(),
        "strategy": pa.string(),
        "seed": pa.int64(),
        "score": pa.float64(),
        "agreement": pa.float64(),
        "degraded": pa.bool_(),
        "seconds": pa.float64(),
        "prompt_tokens": pa.int64(),
        "cost": pa.struct({name: pa.float64() for name in SearchCost.model_fields}),
        "paths": PATHS,
    }
)
"""Columns of problems' results. Trees stay in the JSON lines."""
REPLIES = pa.schema(
    {
        "line": pa.int64(),
        "custom_id": pa.string(),
        "status_code": pa.int64(),
        "seconds": pa.float64(),
        "body": pa.string(),
    }
)
"""Columns of batch requests' replies; ``body`` is JSON."""


async def write_parquet(output: Path, path: Path) -> None:
    """Writes the results in ``output`` as a table, atomically.

    Raises:
        OSError: it cannot be written.
    """
    first = next(read_lines(output), {})
    replies = "response" in first

    async def rows() -> AsyncIterator[Mapping[str, Any]]:
        for line in read_lines(output):
            yield _reply(line) if replies else _result(line)

    await write_rows(path, REPLIES if replies else RESULTS, rows())


async def write_rows(path: Path, schema: pa.Schema, rows: AsyncIterator[Mapping[str, Any]]) -> int:
    """Writes ``rows`` as a table, atomically. Returns their number.

    Raises:
        OSError: it cannot be written.
    """
    count = 0
    piece: list[Mapping[str, Any]] = []
    with drafted(path) as draft, parquet.ParquetWriter(draft, schema) as writer:
        async for row in rows:
            piece.append(row)
            count += 1
            if len(piece) == ROWS:
                writer.write_table(pa.Table.from_pylist(piece, schema))
                piece.clear()
        writer.write_table(pa.Table.from_pylist(piece, schema))
    return count


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yields a draft path beside ``path``, and renames it to ``path`` if the block succeeds."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _result(line: Mapping[str, Any]) -> dict[str, Any]:
    return {**line, "level": None if line["level"] is None else str(line["level"])}


def _reply(line: Mapping[str, Any]) -> dict[str, Any]:
    response = line["response"]
    return {**line, "status_code": response["status_code"], "body": json.dumps(response["body"])}
