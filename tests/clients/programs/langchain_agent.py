"""An agent of LangChain's: calls, their results, and the answer to them; by chat and by responses, plain and streamed.

``CHOICE`` in the environment is the first turn's ``tool_choice``.
"""

import os
import sys
from functools import reduce
from operator import add as join
from typing import Any

from client_report import QUESTION, SEED, report
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def flip(side: bool) -> str:
    """Flips."""
    return f"flipped to {side}"


def ran(chat: ChatOpenAI, streams: bool) -> str:
    """The calls and the answer of two turns."""
    first, second = (chat.bind_tools([flip], tool_choice=choice) for choice in (os.environ["CHOICE"], "auto"))
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    called = reply(first, messages, streams)
    results = [ToolMessage(flip.invoke(each["args"]), tool_call_id=each["id"]) for each in called.tool_calls]
    answer = reply(second, [*messages, called, *results], streams)
    calls = [f"{call['name']}({call['args']})" for call in called.tool_calls]
    return f"{called.text}{', '.join(calls)}: {answer.text}"


def reply(chat: Runnable[Any, AIMessage], messages: list[BaseMessage], streams: bool) -> AIMessage:
    return reduce(join, chat.stream(messages)) if streams else chat.invoke(messages)


model = os.environ["MODEL"]
chat = ChatOpenAI(model=model, seed=SEED, max_retries=0)
responses = ChatOpenAI(model=model, use_responses_api=True, extra_body={"seed": SEED}, max_retries=0)
texts = {
    f"{name}{'_streamed' if streams else ''}": ran(client, streams)
    for name, client in (("chat", chat), ("responses", responses))
    for streams in (False, True)
}
report(texts, sys.argv[1])
