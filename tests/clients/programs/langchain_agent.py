"""An agent of LangChain's: a call, its result, and the answer to it; by chat and by responses, plain and streamed."""

import os
import sys
from functools import reduce
from operator import add as join

from client_report import QUESTION, SEED, report
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def flip(side: bool) -> str:
    """Flips."""
    return f"flipped to {side}"


def ran(chat: ChatOpenAI, streams: bool) -> str:
    """The call and the answer of two turns."""
    forced, free = (chat.bind_tools([flip], tool_choice=choice) for choice in ("required", "auto"))
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    called = reduce(join, forced.stream(messages)) if streams else forced.invoke(messages)
    assert isinstance(called, AIMessage)
    [call] = called.tool_calls[:1]
    results = [ToolMessage(flip.invoke(each["args"]), tool_call_id=each["id"]) for each in called.tool_calls]
    answer = free.invoke([*messages, called, *results])
    assert answer.text
    return f"{call['name']}({call['args']}): {answer.text}"


model = os.environ["MODEL"]
chat = ChatOpenAI(model=model, seed=SEED, max_retries=0)
responses = ChatOpenAI(model=model, use_responses_api=True, extra_body={"seed": SEED}, max_retries=0)
texts = {
    f"{name}{'_streamed' if streams else ''}": ran(client, streams)
    for name, client in (("chat", chat), ("responses", responses))
    for streams in (False, True)
}
report(texts, sys.argv[1])
