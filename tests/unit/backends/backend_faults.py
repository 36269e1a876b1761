"""What a backend can do wrong, and the fault that a call to it ends in."""

from rude_server import (
    EVENTS,
    Behaviour,
    echoes_the_key,
    endless,
    event,
    good,
    hangs,
    head,
    replies,
    says,
    streams,
)

from deployments.backends.errors import Fault

KEY = "sk-never-seen-4711"
IMPATIENT = {"idle_s": 0.2, "reply_s": 0.2}
STREAM = head(kind="text/event-stream")

FAULTS: dict[str, tuple[Fault, bool, Behaviour]] = {
    "cut before headers": (Fault.CUT, False, says(b"")),
    "cut in the body": (Fault.CUT, False, says(head(Content_Length="100") + b'{"choices"')),
    "cut in an event": (Fault.CUT, True, says(STREAM + event(EVENTS[0]) + b"data: {")),
    "stream without its end": (Fault.CUT, True, streams(*EVENTS, done=b"")),
    "no HTTP": (Fault.CUT, False, says(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")),
    "headers without end": (Fault.CUT, False, endless(b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 1024 + b"\r\n")),
    "500": (Fault.FAILED, False, echoes_the_key(500)),
    "503": (Fault.FAILED, False, replies(503)),
    "400": (Fault.REFUSED, False, echoes_the_key(400)),
    "error in a stream": (Fault.FAILED, True, streams(EVENTS[0], {"error": {"message": "out of memory"}})),
    "refusal in a stream": (Fault.REFUSED, True, streams({"error": {"message": "too long", "code": 400}})),
    "error in a reply": (Fault.FAILED, False, replies(200, {"error": {"message": "overloaded", "code": 502}})),
    "refusal in a reply": (Fault.REFUSED, False, replies(200, {"error": {"message": "too long", "code": 400}})),
    "error in place of a stream": (Fault.FAILED, True, replies(200, {"error": {"message": "overloaded"}})),
    "silent before headers": (Fault.SILENT, False, hangs()),
    "silent in the body": (Fault.SILENT, False, hangs(head() + b'{"choices"')),
    "silent in a stream": (Fault.SILENT, True, hangs(STREAM + event(EVENTS[0]))),
    "slow drip": (Fault.LATE, False, endless(head(), b" ", pause_s=0.05)),
    "slow drip of comments": (Fault.LATE, True, endless(STREAM, b": still here\n\n", pause_s=0.05)),
    "truncated JSON": (Fault.INVALID, False, says(head() + b'{"choices": [{"mess')),
    "NaN": (Fault.INVALID, False, says(head() + b'{"value": NaN}')),
    "nested too deeply": (Fault.INVALID, False, says(head() + b"[" * 3000)),
    "a list": (Fault.INVALID, False, replies(200, [1])),
    "a page": (Fault.INVALID, False, says(head(kind="text/html") + b"<html>")),
    "no stream": (Fault.INVALID, True, good),
    "compressed": (Fault.INVALID, False, replies(200, Content_Encoding="gzip")),
    "body without end": (Fault.TOO_LARGE, False, endless(head(), b" " * 1024)),
    "line without end": (Fault.TOO_LARGE, True, endless(STREAM, b"data: " + b" " * 1024)),
    "error without end": (Fault.FAILED, False, endless(head(500), b" " * 1024)),
    "wrong key": (Fault.KEY, False, echoes_the_key(401)),
    "forbidden": (Fault.KEY, False, echoes_the_key(403)),
    "429": (Fault.BUSY, False, replies(429)),
    "429 until after the deadline": (Fault.BUSY, False, replies(429, Retry_After="3600")),
    "429 until a date after the deadline": (
        Fault.BUSY,
        False,
        replies(429, Retry_After="Fri, 31 Dec 2100 23:59:59 GMT"),
    ),
}
"""By name: the fault, whether the call is for a stream, and what the server does."""
