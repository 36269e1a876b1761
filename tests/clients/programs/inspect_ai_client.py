"""inspect_ai through its provider for compatible endpoints: chat and responses, plain and streamed, and an
evaluation."""

import asyncio
import os
import sys

import inspect_ai
from client_report import QUESTION, SEED, report
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes

name = f"openai-api/banyan/{os.environ['MODEL']}"
seeded = GenerateConfig(seed=SEED, max_retries=0)
by_body = GenerateConfig(extra_body={"seed": SEED}, max_retries=0)


async def text_of(config: GenerateConfig, **arguments: bool) -> str:
    async with get_model(name, config=config, **arguments) as model:
        return (await model.generate(QUESTION)).completion


async def ask() -> dict[str, str]:
    return {
        "chat": await text_of(seeded),
        "chat_streamed": await text_of(seeded, stream=True),
        "responses": await text_of(by_body, responses_api=True),
        "responses_streamed": await text_of(by_body, responses_api=True, stream=True),
        "effort": await text_of(seeded.merge(GenerateConfig(reasoning_effort="low"))),
    }


texts = asyncio.run(ask())
task = inspect_ai.Task(dataset=[Sample(input=QUESTION, target="313")], scorer=includes(), config=seeded)
[log] = inspect_ai.eval(task, model=name, display="plain", log_dir=os.environ["LOGS"])
assert log.status == "success", log.error
texts["evaluation"] = log.samples[0].output.completion
report(texts, sys.argv[1])
