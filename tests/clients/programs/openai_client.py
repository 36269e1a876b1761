"""OpenAI's own client: chat and responses, plain and streamed, and both in a batch."""

import json
import os
import sys
import time
from typing import Any

import openai
from client_report import QUESTION, SEED, report

model = os.environ["MODEL"]
client = openai.OpenAI(max_retries=0)
chat = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "seed": SEED}
responses = {"model": model, "input": QUESTION, "extra_body": {"seed": SEED}}


def batched(url: Any, body: dict[str, Any]) -> Any:
    """The reply to one request of a batch."""
    line = {"custom_id": "one", "method": "POST", "url": url, "body": body}
    file = client.files.create(file=("one.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    assert batch.id in [each.id for each in client.batches.list(limit=1)]
    while batch.status not in ("completed", "failed"):
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None, batch
    [result] = client.files.content(batch.output_file_id).text.splitlines()
    assert client.files.delete(file.id).deleted
    return json.loads(result)["response"]["body"]


def cancelled() -> str:
    """Cancels a batch at once, and returns its final status."""
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    file = client.files.create(file=json.dumps(line).encode(), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return client.batches.cancel(batch.id).status


with client.chat.completions.stream(**chat) as stream:
    chat_streamed = stream.get_final_completion().choices[0].message.content
with client.responses.stream(**responses) as stream:
    responses_streamed = stream.get_final_response().output_text
texts = {
    "chat": client.chat.completions.create(**chat).choices[0].message.content,
    "chat_streamed": chat_streamed,
    "responses": client.responses.create(**responses).output_text,
    "responses_streamed": responses_streamed,
}
by_chat = openai.types.chat.ChatCompletion.model_validate(batched("/v1/chat/completions", chat))
texts["batch"] = by_chat.choices[0].message.content
by_responses = {"model": model, "input": QUESTION, "seed": SEED}
texts["batch_responses"] = openai.types.responses.Response.model_validate(
    batched("/v1/responses", by_responses)
).output_text
assert cancelled() in ("cancelling", "cancelled")
thought = client.responses.create(**responses, reasoning={"effort": "low"})
texts["effort"] = thought.output_text
several = client.chat.completions.create(**chat, n=2, logprobs=True, reasoning_effort="high")
texts["several"] = several.choices[0].message.content
report(texts, sys.argv[1])
