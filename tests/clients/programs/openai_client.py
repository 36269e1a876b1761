"""OpenAI's own client: chat and responses, plain and streamed."""

import os
import sys

import openai
from told import QUESTION, SEED, tell

model = os.environ["MODEL"]
client = openai.OpenAI(max_retries=0)
chat = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "seed": SEED}
responses = {"model": model, "input": QUESTION, "extra_body": {"seed": SEED}}

with client.chat.completions.stream(**chat) as stream:
    chat_streamed = stream.get_final_completion().choices[0].message.content
with client.responses.stream(**responses) as stream:
    responses_streamed = stream.get_final_response().output_text
said = {
    "chat": client.chat.completions.create(**chat).choices[0].message.content,
    "chat_streamed": chat_streamed,
    "responses": client.responses.create(**responses).output_text,
    "responses_streamed": responses_streamed,
}
thought = client.responses.create(**responses, reasoning={"effort": "low"})
said["effort"] = thought.output_text
several = client.chat.completions.create(**chat, n=2, logprobs=True, reasoning_effort="high")
said["several"] = several.choices[0].message.content
tell(said, sys.argv[1])
