"""LangChain's ChatOpenAI: chat and responses, invoked, streamed, and with a history."""

import os
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from told import QUESTION, SEED, tell

model = os.environ["MODEL"]
chat = ChatOpenAI(model=model, seed=SEED, max_retries=0)
responses = ChatOpenAI(model=model, use_responses_api=True, extra_body={"seed": SEED}, max_retries=0)
said = {
    "chat": chat.invoke(QUESTION).text,
    "chat_streamed": "".join(chunk.text for chunk in chat.stream(QUESTION)),
    "responses": responses.invoke(QUESTION).text,
    "responses_streamed": "".join(chunk.text for chunk in responses.stream(QUESTION)),
}
answer = responses.invoke(QUESTION)
for name, asked in (("chat", chat), ("responses", responses)):
    history = [
        SystemMessage("Be brief."),
        HumanMessage(QUESTION),
        answer if name == "responses" else AIMessage(said["chat"]),
    ]
    said[f"{name}_history"] = asked.invoke([*history, HumanMessage(QUESTION)]).text
said["effort"] = ChatOpenAI(model=model, seed=SEED, reasoning_effort="low", max_retries=0).invoke(QUESTION).text
tell(said, sys.argv[1])
