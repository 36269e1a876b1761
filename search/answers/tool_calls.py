"""Calls of tools as answers: samples that call the same functions with the same arguments give the same answer."""

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from search.answers.json_answer import json_answer


class ToolCall(NamedTuple):
    """A call of a function that a model asks for."""

    name: str
    arguments: str
    """A JSON object, as the model wrote it; models may write what is none."""


def calls_answer(calls: Sequence[ToolCall], exclude_arguments: Collection[str] = ()) -> str:
    """Returns calls in canonical form, as JSON. Calls of one message are made in parallel, so their order is none.

    ``exclude_arguments``: names of arguments that say nothing, such as an explanation of the call.
    """
    return f"[{','.join(sorted(_canonical(call, exclude_arguments) for call in calls))}]"


def _canonical(call: ToolCall, exclude_arguments: Collection[str]) -> str:
    arguments = json_answer(call.arguments)
    if arguments is not None and exclude_arguments and isinstance(given := json.loads(arguments), dict):
        kept = {name: value for name, value in given.items() if name not in exclude_arguments}
        arguments = json_answer(json.dumps(kept))
    written = json.dumps(call.arguments, ensure_ascii=False) if arguments is None else arguments
    return f'{{"name":{json.dumps(call.name, ensure_ascii=False)},"arguments":{written}}}'
