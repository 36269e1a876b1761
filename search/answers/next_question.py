"""Marks of another question in a text: models without a stop condition go on into one, and answer it too."""

import re
from typing import NamedTuple

from search.answers.vocabulary import QUESTION

MAX_MARKS = 32
"""Maximum number of marks read; the text after the last one is one question."""

_ROLE = r"(?:user|human|system)"
_TURN = (
    rf"<\|(?:im_start|start|turn|start_of_role|role_start|start_header_id)\|?>\s{{0,2}}{_ROLE}|<start_of_turn>\s{{0,2}}{_ROLE}"
    rf"|<[|｜](?:{_ROLE}|USER_TOKEN|prompter)[|｜]?>|\[\|{_ROLE}\|\]|\[INST\]"
    r"|</s>|<eos>|<end_of_turn>|<turn\|>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|end_of_turn|END_OF_TURN_TOKEN|eos|return)\|>"
)
_NEXT = (
    r"(?:(?:now,? |here(?: is|['’]s) |let['’]s [a-z]{2,9} ){0,2}(?:the |a |one )?"
    r"(?:next|new|another|more|follow[- ]?up|bonus|practice|similar|related|additional|extra|second|different)[ \t])?"
)
_NUMBER = r"(?:[ \t]{0,2}(?:no\.?|number|#|n[°º])?[ \t]{0,2}(?P<number>\d{1,4}(?:\.\d{1,3})?))?"
_MARK = re.compile(
    rf"(?P<turn>{_TURN})"
    rf"|^[ \t><\[(*_#-]{{0,8}}{_NEXT}(?:{QUESTION}){_NUMBER}[*_ \t>\])]{{0,4}}(?:[:：]|(?<=\d)[.)](?=[\s*_])|\r?$)"
    r"|(?<=\S[ \t])(?-i:Question|Problem|Exercise|Human|User|Q)(?: \d{1,4})?:",
    re.IGNORECASE | re.MULTILINE,
)


class Mark(NamedTuple):
    """A mark of another question."""

    start: int
    is_turn: bool
    """A mark of a chat template or the like: what stands before it is the whole reply."""
    is_numbered: bool


def question_marks(text: str) -> list[Mark]:
    """The marks in ``text``, in their order. Takes linear time."""
    marks: list[Mark] = []
    for mark in _MARK.finditer(text):
        if len(marks) == MAX_MARKS:
            break
        marks.append(Mark(mark.start(), mark["turn"] is not None, mark["number"] is not None))
    return marks
