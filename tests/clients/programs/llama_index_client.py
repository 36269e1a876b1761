"""LlamaIndex's classes for compatible endpoints: chat and completion by chat, and responses; plain and streamed."""

import os
import sys

from client_report import QUESTION, SEED, report
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses

common = {"model": os.environ["MODEL"], "api_base": os.environ["OPENAI_BASE_URL"], "api_key": "none", "max_retries": 0}
chat = OpenAILike(**common, is_chat_model=True, additional_kwargs={"seed": SEED})
responses = OpenAILikeResponses(**common, additional_kwargs={"extra_body": {"seed": SEED}})
question = [ChatMessage(role="user", content=QUESTION)]
answer = chat.chat(question)
texts = {
    "chat": answer.message.content,
    "chat_streamed": "".join(chunk.delta or "" for chunk in chat.stream_chat(question)),
    "complete": chat.complete(QUESTION).text,
    "complete_streamed": "".join(chunk.delta or "" for chunk in chat.stream_complete(QUESTION)),
    "responses": responses.chat(question).message.content,
    "responses_streamed": "".join(chunk.delta or "" for chunk in responses.stream_chat(question)),
}
history = [ChatMessage(role="system", content="Be brief."), *question, answer.message, *question]
texts["history"] = chat.chat(history).message.content
report(texts, sys.argv[1])
