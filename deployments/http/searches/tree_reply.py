"""A reply that contains a whole tree. It may have tens of megabytes, so it is written and sent in pieces."""

from collections.abc import AsyncIterator, Sequence

from starlette.responses import StreamingResponse

from deployments.http.replies import Json, dumps
from search.snapshot import nodes_as_json, rest_as_json, version_of
from search.tools.turns import Turns
from search.tree import SearchTree

PIECE_BYTES = 1 << 16


async def with_tree(reply: Json, tree: SearchTree) -> list[bytes]:
    """Returns ``reply`` with the ``tree_as_json`` of a tree as its last field, ``tree``, as JSON in pieces of about
    ``PIECE_BYTES``. Yields to the event loop meanwhile, so that other requests proceed."""
    turns = Turns()
    pieces: list[bytes] = []
    piece = bytearray(dumps(reply).removesuffix("}").encode())
    piece += f',"tree":{{"version":{version_of(tree)},"nodes":['.encode()
    separator = b""
    for node in nodes_as_json(tree):
        piece += separator + dumps(node).encode()
        separator = b","
        if len(piece) >= PIECE_BYTES:
            pieces.append(bytes(piece))
            piece.clear()
        await turns.pass_on()
    piece += b"]," + dumps(rest_as_json(tree)).removeprefix("{").encode() + b"}"
    return [*pieces, bytes(piece)]


class BytesResponse(StreamingResponse):
    """A complete JSON body, sent in pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        async def each() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        length = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(each(), media_type="application/json", headers=length)
