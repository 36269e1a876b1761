"""An agent on OpenAI's own client: calls, their results, and the answer to them; by chat and by responses, plain and
streamed.

``CHOICE`` in the environment is the first turn's ``tool_choice``.
"""

import json
import os
import sys
from typing import Any

import openai
from client_report import QUESTION, SEED, report
from pydantic import BaseModel


class flip(BaseModel):  # noqa: N801  # the function's name
    """Flips."""

    side: bool


CHOICES = os.environ["CHOICE"], "auto"
client = openai.OpenAI(max_retries=0)
model = os.environ["MODEL"]
chat_tool = openai.pydantic_function_tool(flip)
response_tool = {"type": "function", **chat_tool["function"]}


def result(arguments: str) -> str:
    return f"flipped to {json.loads(arguments)['side']}"


def by_chat(streams: bool) -> str:
    """The calls and the answer of two turns."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    told = ""
    for choice in CHOICES:
        asked = {"model": model, "messages": messages, "seed": SEED, "tools": [chat_tool], "tool_choice": choice}
        if streams:
            with client.chat.completions.stream(**asked) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        calls = message.tool_calls or []
        told += f"{message.content or ''}{listed(each.function for each in calls)}"
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": each.id, "content": result(each.function.arguments)} for each in calls
        ]
    return told


def by_responses(streams: bool) -> str:
    """The same."""
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    told = ""
    for choice in CHOICES:
        asked = {"model": model, "input": items, "tools": [response_tool], "tool_choice": choice}
        if streams:
            with client.responses.stream(**asked, extra_body={"seed": SEED}) as stream:
                response = stream.get_final_response()
        else:
            response = client.responses.create(**asked, extra_body={"seed": SEED})
        calls = [item for item in response.output if item.type == "function_call"]
        told += f"{response.output_text}{listed(calls)}"
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        items += [
            {"type": "function_call_output", "call_id": each.call_id, "output": result(each.arguments)}
            for each in calls
        ]
    return told


def listed(calls: Any) -> str:
    texts = [f"{call.name}({json.loads(call.arguments)})" for call in calls]
    return f"{', '.join(texts)}: " if texts else ""


texts = {"chat": by_chat(False), "chat_streamed": by_chat(True)}
texts |= {"responses": by_responses(False), "responses_streamed": by_responses(True)}
report(texts, sys.argv[1])
