"""LiteLLM: chat and responses, plain and streamed."""

import os
import sys

import litellm
from client_report import QUESTION, SEED, report

litellm.telemetry = False
model = f"openai/{os.environ['MODEL']}"
messages = [{"role": "user", "content": QUESTION}]
chat = {"model": model, "messages": messages, "seed": SEED, "num_retries": 0}
responses = {"model": model, "input": QUESTION, "extra_body": {"seed": SEED}, "num_retries": 0}
texts = {
    "chat": litellm.completion(**chat).choices[0].message.content,
    "chat_streamed": "".join(
        chunk.choices[0].delta.content or "" for chunk in litellm.completion(**chat, stream=True) if chunk.choices
    ),
    "responses": litellm.responses(**responses).output_text,
    "responses_streamed": "".join(
        event.delta
        for event in litellm.responses(**responses, stream=True)
        if event.type == "response.output_text.delta"
    ),
    "effort": litellm.completion(**chat, reasoning_effort="low", allowed_openai_params=["reasoning_effort"])
    .choices[0]
    .message.content,
}
report(texts, sys.argv[1])
