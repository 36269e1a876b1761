"""The web page: its files, and the whole page in one file. How it is served is in `deployments.http.page.routes`.

The page is plain ES modules and a style sheet, so there is no build step. Text that a model wrote reaches the document
as text only: the policies below forbid inline scripts, `eval` and every sink that parses markup.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODULES = ("model.js", "layout.js", "draw.js", "api.js", "pane.js", "app.js")
"""All modules, each after those that it imports."""
ONLY_TEXT = "base-uri 'self'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    f"frame-ancestors 'none'; {ONLY_TEXT}"
)
"""Content security policy of the page as it is served."""
_IMPORT = re.compile(r'^import .*? from "\./[a-z]+\.js";\n', re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


@lru_cache(maxsize=8)
def document(base: str, needs_key: bool, keeps: bool) -> bytes:
    """Returns the HTML of the page.

    Args:
        base: The path at which the application is served; ends with a slash.
        needs_key: Whether requests need an API key.
        keeps: Whether searches can be stored.
    """
    said = f'<html lang="en" data-key="{_flag(needs_key)}" data-store="{_flag(keeps)}">'
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    return text.replace('<html lang="en">', said).replace('<base href="/">', f'<base href="{base}">').encode()


def single_file(searches: Iterable[dict[str, Any]]) -> str:
    """Returns a page that shows saved searches and needs no server. ``searches``: as the page exports them."""
    script = "".join(_EXPORT.sub("", _IMPORT.sub("", _file(name))) for name in MODULES)
    style = _file("page.css")
    icon = base64.b64encode(_file("icon.svg").encode()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; "
        f"img-src data:; {ONLY_TEXT}"
    )
    # A script element ends at the first "</script", and "<!--" changes how it is read: no "<" is left.
    saved = json.dumps({"version": 1, "searches": list(searches)}, allow_nan=False).replace("<", "\\u003c")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n'
        f"<style>{style}</style>\n"
        f'<script id="saved" type="application/json">{saved}</script>\n'
        f'<script type="module">{script}</script>\n'
    )
    before, _, rest = _file("index.html").partition("<!-- files -->\n")
    return before + head + rest.partition("<!-- end of files -->\n")[2]


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _flag(value: bool) -> str:
    return "yes" if value else "no"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
