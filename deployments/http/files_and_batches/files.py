"""``/v1/files`` of OpenAI's API: the input and output files of batches."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, cast

from fastapi import APIRouter, Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from deployments.admission.errors import BadRequest, Unavailable, UnsupportedMedia
from deployments.admission.limits import arriving, check_declared
from deployments.http.endpoint import ServedStore
from deployments.http.json_body import check_encoding, fault_in_text
from deployments.http.replies import json_response
from deployments.http.store_access import After, StoreAccess, page
from deployments.store import FileRecord

logger = logging.getLogger("banyan.http")
router = APIRouter()
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it logs a warning for every malformed form

MAX_NAME_CHARACTERS = 255
MAX_FIELDS = 8
FIELD_BYTES = 4096
MULTIPART_BYTES = 1 << 16
"""Maximum size of a form without its file."""
UPLOAD_TIMEOUT_S = 3600.0
CHECK_DISK_BYTES = 1 << 23
"""The disk's free space is checked each time that so many bytes of an upload have arrived."""
PIECE_BYTES = 1 << 16
MIN_EXPIRES_S, MAX_EXPIRES_S = 3600, 2_592_000
"""OpenAI's limits of ``expires_after.seconds``."""
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": MIN_EXPIRES_S,
                            "maximum": MAX_EXPIRES_S,
                        },
                    },
                }
            }
        },
    }
}


class Upload(NamedTuple):
    """A validated upload form."""

    file: BinaryIO
    size: int
    """Bytes."""
    filename: str
    keep_s: float | None
    """Seconds until the file expires; None: as long as the store keeps files."""


@router.post("/v1/files", openapi_extra=FORM)
async def upload_file(request: Request, kept: ServedStore) -> Response:
    """Keeps a file for batches."""
    owner, files = kept.owner(request), kept.owned(request).files
    with kept.uploads.one(owner):
        await kept.do(owner, files.check_room)
        form = await _form(request, kept, owner)
        try:
            upload = _checked(form)
            source = cast("BinaryIO", _SourceWhileFree(upload.file, kept))
            add = partial(files.add, source, upload.filename, upload.keep_s)
            record = await kept.copy(owner, add, upload.size)
        finally:
            await form.close()
    return json_response(file_object(record))


@router.get("/v1/files")
async def list_files(
    request: Request,
    kept: ServedStore,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    """The key's files, the newest first."""

    def shown() -> dict[str, Any]:
        newest = kept.owned(request).files.newest_first()
        every = [record for record in newest if purpose in (None, record.purpose)]
        return page(every if order == "desc" else every[::-1], file_object, after, limit)

    return json_response(await kept.do(kept.owner(request), shown))


@router.get("/v1/files/{file_id}")
async def get_file(file_id: str, request: Request, kept: ServedStore) -> Response:
    """What is known of a file."""
    record = await kept.do(kept.owner(request), lambda: kept.owned(request).files.get(file_id))
    return json_response(file_object(record))


@router.delete("/v1/files/{file_id}")
async def delete_file(file_id: str, request: Request, kept: ServedStore) -> Response:
    """Removes a file; a batch that has begun with it goes on."""
    await kept.do(kept.owner(request), lambda: kept.owned(request).files.delete(file_id))
    return json_response({"id": file_id, "object": "file", "deleted": True})


@router.get("/v1/files/{file_id}/content")
async def file_content(file_id: str, request: Request, kept: ServedStore) -> Response:
    """A file's bytes, as they came or as a batch wrote them."""

    return _Download(kept, kept.owner(request), file_id)


class _Download(Response):
    """The content of a file. Limits the concurrent downloads of an owner."""

    def __init__(self, kept: StoreAccess, owner: str, file_id: str) -> None:
        super().__init__()
        self._kept = kept
        self._owner = owner
        self._file_id = file_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._kept.downloads.one(self._owner):
            record, file = await self._kept.do(self._owner, self._opened)
            try:
                pieces = StreamingResponse(
                    _pieces(self._kept, self._owner, file),
                    media_type="application/octet-stream",
                    headers={"content-length": str(record.bytes)},
                )
                await pieces(scope, receive, send)
            finally:
                self._kept.let_go(self._owner, file)

    def _opened(self) -> tuple[FileRecord, BinaryIO]:
        return self._kept.store.owned(self._owner).files.open(self._file_id)


def file_object(record: FileRecord) -> dict[str, Any]:
    """Returns a ``file`` object of OpenAI's API."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": int(record.created),
        "expires_at": int(record.expires),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


async def _form(request: Request, kept: StoreAccess, owner: str) -> FormData:
    """Reads the form. A long file goes to a temporary file on disk.

    Raises:
        UnsupportedMedia, BadRequest, BodyTooLarge, BodyTimeout: the body is no form, malformed, too long or too slow.
        Unavailable: a disk has too little free space for it, or cannot be written.
        ClientDisconnect: the client has disconnected.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "multipart/form-data":
        raise UnsupportedMedia(f"Content-Type must be multipart/form-data, not {media or 'missing'}")
    check_encoding(request.headers)
    most = kept.store.settings.file_bytes_max + MULTIPART_BYTES
    check_declared(request.scope, most)
    declared = request.headers.get("content-length", "0")  # digits: the proxy's parser has checked it
    await kept.do(owner, lambda: kept.check_disk(int(declared)))
    parts = _while_free(arriving(request.receive, most, UPLOAD_TIMEOUT_S), kept, owner)
    parser = MultiPartParser(request.headers, parts, max_files=1, max_fields=MAX_FIELDS, max_part_size=FIELD_BYTES)
    try:
        async with aclosing(parts):
            return await parser.parse()
    except MultiPartException as error:
        raise BadRequest(f"the body is not a valid form: {error.message}", code="invalid_form") from None
    except OSError as error:
        logger.error("an upload could not be written to the temporary directory: %s", error)
        raise Unavailable(
            "there is not enough disk space for uploads now; try again", code="store_unavailable"
        ) from None


async def _while_free(parts: AsyncGenerator[bytes, None], kept: StoreAccess, owner: str) -> AsyncGenerator[bytes, None]:
    """Yields the parts while the disks have free space.

    Raises:
        Unavailable: they have too little.
    """
    unchecked = 0
    async with aclosing(parts):
        async for part in parts:
            unchecked += len(part)
            if unchecked >= CHECK_DISK_BYTES:
                unchecked = 0
                await kept.do(owner, kept.check_disk)
            yield part


class _SourceWhileFree:
    """An upload that is copied to the store while its disk has free space."""

    def __init__(self, file: BinaryIO, kept: StoreAccess) -> None:
        self._file = file
        self._kept = kept
        self._unchecked = CHECK_DISK_BYTES

    def read(self, size: int) -> bytes:
        """Raises `Unavailable` once the disk has too little."""
        if self._unchecked >= CHECK_DISK_BYTES:
            self._unchecked = 0
            self._kept.check_disk()
        piece = self._file.read(size)
        self._unchecked += len(piece)
        return piece


def _checked(form: FormData) -> Upload:
    """Validates the form.

    Raises:
        BadRequest: a field is missing, invalid or unknown.
    """
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise BadRequest("missing field: file", "file", "missing_required_parameter")
    filename = file.filename or "upload"
    if len(filename) > MAX_NAME_CHARACTERS:
        raise BadRequest(f"file: its name may have at most {MAX_NAME_CHARACTERS} characters", "file")
    if fault := fault_in_text(filename):
        raise BadRequest(f"file: its name {fault}", "file")
    purpose = fields.pop("purpose", None)
    if purpose != "batch":
        given = "a missing one" if purpose is None else repr(purpose[:80])
        raise BadRequest(f"purpose must be 'batch', not {given}", "purpose")
    anchor, seconds = fields.pop("expires_after[anchor]", None), fields.pop("expires_after[seconds]", None)
    if unknown := [name for name in (*fields, *form) if name not in ("file", "purpose", *EXPIRY_FIELDS)]:
        raise BadRequest(f"unknown field: {unknown[0][:80]}", unknown[0][:80], "unknown_parameter")
    return Upload(file.file, file.size or 0, filename, _keep_s(anchor, seconds))


EXPIRY_FIELDS = ("expires_after[anchor]", "expires_after[seconds]")


def _keep_s(anchor: str | None, seconds: str | None) -> float | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise BadRequest("expires_after.anchor must be 'created_at'", "expires_after.anchor")
    number = int(seconds) if seconds and seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else 0
    if not MIN_EXPIRES_S <= number <= MAX_EXPIRES_S:
        message = f"expires_after.seconds must be a number from {MIN_EXPIRES_S} to {MAX_EXPIRES_S}"
        raise BadRequest(message, "expires_after.seconds")
    return float(number)


async def _pieces(kept: StoreAccess, owner: str, file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await kept.do(owner, lambda: file.read(PIECE_BYTES)):
        yield piece
