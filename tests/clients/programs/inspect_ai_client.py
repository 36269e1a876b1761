"""inspect_ai by its provider of compatible endpoints: chat and responses, plain and streamed, and an evaluation."""

import asyncio
import os
import sys

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from told import QUESTION, SEED, tell

name = f"openai-api/banyan/{os.environ['MODEL']}"
seeded = GenerateConfig(seed=SEED, max_retries=0)
by_body = GenerateConfig(extra_body={"seed": SEED}, max_retries=0)


async def said_by(config: GenerateConfig, **arguments: bool) -> str:
    async with get_model(name, config=config, **arguments) as model:
        return (await model.generate(QUESTION)).completion


async def ask() -> dict[str, str]:
    return {
        "chat": await said_by(seeded),
        "chat_streamed": await said_by(seeded, stream=True),
        "responses": await said_by(by_body, responses_api=True),
        "responses_streamed": await said_by(by_body, responses_api=True, stream=True),
        "effort": await said_by(seeded.merge(GenerateConfig(reasoning_effort="low"))),
    }


said = asyncio.run(ask())
task = inspect_ai.Task(dataset=[Sample(input=QUESTION, target="313")], scorer=includes(), config=seeded)
[log] = inspect_ai.eval(task, model=name, display="plain", log_dir=os.environ["LOGS"])
assert log.status == "success", log.error
said["evaluation"] = log.samples[0].output.completion
tell(said, sys.argv[1])
