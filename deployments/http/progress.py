"""The progress of a search as people read it, in the field in which thinking arrives, too.

Progress comes first, and only in streams; the thinking of the answering path follows behind a heading. Clients send
back what they got in that field, so the two must be told apart again: no progress may get into a prompt.
"""

import re
from typing import Any

from search.answers.thoughts import marks_replaced

HEADING = "[thinking of the answering path]"
"""Alone on a line between the progress and the thinking of one stream."""
_LINE = re.compile(r"^[>\s]*\[-?\d+(?:\.-?\d+)*\](?: |$)", re.MULTILINE)
"""How every line of progress begins; a chat window may have made a quotation of it."""
_HEADING = re.compile(rf"^[>\s]*{re.escape(HEADING)}\s*$", re.MULTILINE)


def step_line(data: dict[str, Any]) -> str:
    """Returns a `deployments.http.replies.step_event` as one line: the step's node, reward and text, and the text of
    the step hook. Of its thinking there is the number of tokens that the model wrote. Marks of thinking that are left
    are cut out, because clients put marks around what they got here."""
    node = ".".join(map(str, data["node"]))
    reward = "" if data["reward"] is None else f" {data['reward']:.2f}"
    text, thought = data["text"], data.get("thought")
    if thought:
        written = thought["tokens"] - sum(
            end - start for start, end in data.get("given", ()) if start < thought["tokens"]
        )
        text = (f"[{written} tokens of thinking] " if written else "") + text[thought["characters"] :]
    added = f" [step hook: {' '.join(hooked.split())}]" if (hooked := data.get("hook", {}).get("text")) else ""
    line = f"[{node}]{reward}{' ■' if data['terminal'] else ''} {' '.join(text.split())}{added}\n"
    return marks_replaced(line, "…")


def without_progress(text: str) -> str:
    """The thinking in what a client has sent back as reasoning; empty if it is progress."""
    if heading := _HEADING.search(text):
        return text[heading.end() :].strip()
    return "" if _LINE.search(text) else text.strip()
