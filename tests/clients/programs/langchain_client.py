"""LangChain's ChatOpenAI: chat and responses, invoked, streamed, and with a history."""

import os
import sys

from client_report import QUESTION, SEED, report
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

model = os.environ["MODEL"]
chat = ChatOpenAI(model=model, seed=SEED, max_retries=0)
responses = ChatOpenAI(model=model, use_responses_api=True, extra_body={"seed": SEED}, max_retries=0)
texts = {
    "chat": chat.invoke(QUESTION).text,
    "chat_streamed": "".join(chunk.text for chunk in chat.stream(QUESTION)),
    "responses": responses.invoke(QUESTION).text,
    "responses_streamed": "".join(chunk.text for chunk in responses.stream(QUESTION)),
}
answer = responses.invoke(QUESTION)
for name, client in (("chat", chat), ("responses", responses)):
    history = [
        SystemMessage("Be brief."),
        HumanMessage(QUESTION),
        answer if name == "responses" else AIMessage(texts["chat"]),
    ]
    texts[f"{name}_history"] = client.invoke([*history, HumanMessage(QUESTION)]).text
# Sent as max_completion_tokens, which is a token budget of all paths.
limited = ChatOpenAI(model=model, seed=SEED, max_tokens=512, max_retries=0)
texts["limited"] = limited.invoke(QUESTION).text
texts["effort"] = ChatOpenAI(model=model, seed=SEED, reasoning_effort="low", max_retries=0).invoke(QUESTION).text
report(texts, sys.argv[1])
