"""Valid and invalid lines of OpenAI's batch files."""

import json
from typing import Any

Json = dict[str, Any]


def request(index: int, **fields: Any) -> Json:
    body = {"model": "stand-in", "messages": [{"role": "user", "content": f"q{index}"}]}
    return {"custom_id": f"c-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}


WRONG: list[tuple[bytes, str]] = [
    (b"{", "not JSON"),
    (b"\xff\xfe", "not UTF-8"),
    (b"[1]", "a list"),
    (b"7", "a number"),
    (b"[" * 10_000, "nested too deeply"),
    (json.dumps(request(0, custom_id="")).encode(), "custom_id must be"),
    (json.dumps(request(0, method="GET")).encode(), "method must be POST"),
    (json.dumps(request(0, url="/v1/embeddings")).encode(), "url must be one of"),
    (json.dumps(request(0, body="no")).encode(), "body must be an object"),
    (json.dumps(request(0, body={"stream": True})).encode(), "body.stream must be false"),
    (json.dumps(request(0, body={"background": True})).encode(), "body.background must be false"),
    (json.dumps(request(0, body={"background": "yes"})).encode(), "body.background must be false"),
]
"""Invalid lines, each with a part of its error message."""
