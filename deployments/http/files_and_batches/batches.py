"""``/v1/batches`` of OpenAI's API: files of requests, processed by the batch runner."""

import time
from contextlib import suppress
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from deployments.admission.body_threads import read_by
from deployments.admission.clients import client_of
from deployments.admission.errors import BadRequest, Conflict, NotFound
from deployments.admission.proxy import WORK
from deployments.http.chat.schema import MAX_METADATA, Metadata
from deployments.http.documentation import body_of
from deployments.http.endpoint import ServedStore
from deployments.http.files_and_batches.files import MAX_EXPIRES_S, MIN_EXPIRES_S
from deployments.http.json_body import Body, check_media, parsed_object, validated
from deployments.http.replies import json_response
from deployments.http.store_access import After, Limit, page
from deployments.store import Batch, BatchRecord, BatchStatus, BatchUsage, Damaged, NotThere

router = APIRouter()

UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_S = 7 * 86_400


class OutputExpiry(Body):
    """Earlier expiry of the files of results."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRES_S, le=MAX_EXPIRES_S)


class BatchBody(Body):
    """``POST /v1/batches``."""

    input_file_id: str = Field(max_length=128, description="ID of a file that was uploaded with the purpose batch.")
    endpoint: str = Field(json_schema_extra={"enum": list(WORK)}, description="URL of all requests in the file.")
    completion_window: str = Field(
        max_length=16, description="24h, or another duration of up to seven days: 90m, 12h, 7d.", examples=["24h"]
    )
    metadata: Metadata | None = Field(None, max_length=MAX_METADATA, description="Comes back.")
    output_expires_after: OutputExpiry | None = None

    @property
    def window_s(self) -> int:
        """The completion window in seconds.

        Raises:
            BadRequest: the window is malformed, zero or too long.
        """
        number, unit = self.completion_window[:-1], self.completion_window[-1:]
        known = unit in UNIT_SECONDS and number.isascii() and number.isdigit()
        seconds = int(number) * UNIT_SECONDS[unit] if known else 0
        if not 0 < seconds <= MAX_WINDOW_S:
            message = "completion_window must be a duration of up to seven days, such as 24h, 90m or 7d"
            raise BadRequest(f"{message}, not {self.completion_window!r}", "completion_window")
        return seconds


@router.post("/v1/batches", openapi_extra=body_of(BatchBody))
async def create_batch(request: Request, kept: ServedStore) -> Response:
    """Begins a batch with a file that was uploaded."""
    check_media(request.headers)
    owner = kept.owner(request)
    client = client_of(request.scope)
    body = await kept.bodies.read(request.scope, request.receive, client)
    asked = await read_by(lambda body: validated(BatchBody, parsed_object(body)), body, client)
    if asked.endpoint not in WORK:
        raise BadRequest(f"endpoint must be one of {', '.join(WORK)}, not {asked.endpoint[:80]!r}", "endpoint")
    owned, window_s, now = kept.owned(request), asked.window_s, time.time()
    record = BatchRecord(
        id=owned.batches.new_id(),
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        created=now,
        expires=now + window_s,
        metadata=asked.metadata,
        output_keep_s=asked.output_expires_after.seconds if asked.output_expires_after else None,
    )

    def begun() -> dict[str, Any]:
        try:
            if owned.files.get(asked.input_file_id).purpose != "batch":
                message = f"input_file_id: {asked.input_file_id} was not uploaded with the purpose batch"
                raise BadRequest(message, "input_file_id")
            return batch_object(kept.store.begin(owner, record))
        except NotThere as error:
            raise NotFound(f"input_file_id: {error}", "input_file_id") from None

    return json_response(await kept.do(owner, begun))


@router.get("/v1/batches")
async def list_batches(
    request: Request,
    kept: ServedStore,
    after: After = None,
    limit: Limit = 20,
) -> Response:
    """The key's batches, the newest first."""

    def shown() -> dict[str, Any]:
        return page(kept.owned(request).batches.newest_first(), batch_object, after, limit)

    return json_response(await kept.do(kept.owner(request), shown))


@router.get("/v1/batches/{batch_id}")
async def get_batch(batch_id: str, request: Request, kept: ServedStore) -> Response:
    """How far a batch is."""
    shown = await kept.do(kept.owner(request), lambda: batch_object(kept.owned(request).batches.get(batch_id)))
    return json_response(shown)


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, request: Request, kept: ServedStore) -> Response:
    """Ends a batch; what is done by then has its results."""

    def cancelled() -> dict[str, Any]:
        batch = kept.owned(request).batches.get(batch_id)
        status = batch.state.status
        if status.is_final and status is not BatchStatus.CANCELLED:
            raise Conflict(f"a batch that is {status} cannot be cancelled")
        if not status.is_final:
            batch.cancel()
        return batch_object(batch)

    return json_response(await kept.do(kept.owner(request), cancelled))


@router.delete("/v1/batches/{batch_id}")
async def delete_batch(batch_id: str, request: Request, kept: ServedStore) -> Response:
    """Forgets a batch that has ended or is damaged; its files stay."""

    def delete() -> None:
        batches = kept.owned(request).batches
        with suppress(Damaged):
            batch = batches.get(batch_id)
            _ = batch.record  # without it nobody works at the batch
            if not (status := batch.state.status).is_final:
                raise Conflict(f"a batch that is {status} cannot be deleted; cancel it first")
        batches.remove(batch_id)

    await kept.do(kept.owner(request), delete)
    return json_response({"id": batch_id, "object": "batch", "deleted": True})


def batch_object(batch: Batch) -> dict[str, Any]:
    """Returns a ``batch`` object of OpenAI's API."""
    record, state, cancelled = batch.record, batch.state, batch.cancelled
    ended = {status: state.ended if state.status is status else None for status in BatchStatus}
    times = {
        "created_at": record.created,
        "expires_at": record.expires,
        "in_progress_at": state.in_progress,
        "finalizing_at": state.finalizing,
        "completed_at": ended[BatchStatus.COMPLETED],
        "failed_at": ended[BatchStatus.FAILED],
        "expired_at": ended[BatchStatus.EXPIRED],
        "cancelling_at": cancelled if state.status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED) else None,
        "cancelled_at": ended[BatchStatus.CANCELLED],
    }
    errors = [error.model_dump() for error in state.errors]
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": state.status.value,
        "output_file_id": state.output_file_id,
        "error_file_id": state.error_file_id,
        "errors": {"object": "list", "data": errors} if errors else None,
        "request_counts": {"total": state.total, "completed": state.completed, "failed": state.failed},
        "metadata": record.metadata,
        "usage": None if state.usage is None else _usage(state.usage),
        **{name: None if at is None else int(at) for name, at in times.items()},
    }


def _usage(usage: BatchUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
