"""The body of an error in OpenAI's shape, for Serve's proxy, whose process imports next to nothing."""

import json


def error_body(message: str, kind: str, code: str) -> bytes:
    """Returns the JSON. ``kind`` is OpenAI's ``type``."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
