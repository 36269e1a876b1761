"""One side of `benchmarks.backend`: a library in a process of its own, its_hub's or Banyan's, over a served model.

Reads questions as JSON lines and answers each as soon as it is solved, in any order. its_hub's side runs where its_hub
is installed, and imports nothing of Banyan.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

MAX_TOKENS = 512
TEMPERATURE = 0.8
BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


class Solved(NamedTuple):
    answer: str | None
    tokens: int


Solve = Callable[[str, int], Awaitable[Solved]]


def answer_of(text: str) -> str | None:
    """The last boxed answer, as its_hub's users write a projection."""
    found = BOXED.findall(text)
    return found[-1].strip() if found else None


def reward(text: str) -> float:
    """The same for both sides, and next to nothing: what is compared is what asks for it."""
    return 1 / (1 + len(text))


def rewards(question: str, steps: Sequence[str]) -> list[float]:
    """Banyan's reward function."""
    return [reward("".join(steps[: index + 1])) for index in range(len(steps))]


@asynccontextmanager
async def its_hub(url: str, model: str, strategy: str, n: int) -> AsyncIterator[Solve]:
    """its_hub at its best: one client, no limit of concurrent calls, no server of its own before it."""
    from its_hub.api import AbstractOutcomeRewardModel
    from its_hub.core.algorithms.bon import BestOfN
    from its_hub.core.algorithms.self_consistency import SelfConsistency
    from its_hub.core.lms.openai_lm import OpenAICompatibleLanguageModel
    from its_hub.core.orchestrator import LMOrchestrator

    class Reward(AbstractOutcomeRewardModel):  # type: ignore[misc]
        def score(self, messages: Any, **_: Any) -> list[float]:
            return [reward(conversation[-1].content) for conversation in messages]

        async def ascore(self, messages: Any, orchestrator: Any = None, **_: Any) -> list[float]:
            return self.score(messages)

    calls = LMOrchestrator(max_concurrency=-1)
    if strategy == "best_of_n":
        algorithm = BestOfN(Reward(), calls)
    else:
        algorithm = SelfConsistency(lambda text: answer_of(text) or "", orchestrator=calls)
    endpoint = f"{url}/v1"
    async with OpenAICompatibleLanguageModel(
        endpoint, "none", model, max_completion_tokens=MAX_TOKENS, temperature=TEMPERATURE
    ) as language_model:

        async def solve(question: str, _seed: int) -> Solved:
            done = await algorithm.ainfer(language_model, question, n, return_response_only=False)
            return Solved(answer_of(done.the_one["content"]), done.usage.completion_tokens)

        yield solve


@asynccontextmanager
async def banyan(url: str, model: str, strategy: str, n: int) -> AsyncIterator[Solve]:
    from deployments.backends.connection import connect

    class Scorer:
        async def score(self, request: Any) -> list[list[float]]:
            return [rewards(request.question, item.steps)[-item.unscored :] for item in request.items]

    search = {"strategy": strategy, "n": n, "max_path_tokens": MAX_TOKENS, "temperature": TEMPERATURE}
    async with connect(url, model, scorer=Scorer()) as backend:

        async def solve(question: str, seed: int) -> Solved:
            outcome = await backend.answer(question, search | {"seed": seed})
            return Solved(outcome.selection.answer, outcome.cost.generated_tokens)

        yield solve


async def main(side: str, url: str, model: str, strategy: str, n: str) -> None:
    solver = {"its_hub": its_hub, "banyan": banyan}[side]
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with solver(url, model, strategy, int(n)) as solve, asyncio.TaskGroup() as group:

        async def answer(asked: dict[str, Any]) -> None:
            solved = await solve(asked["question"], asked["seed"])
            print(json.dumps({"id": asked["id"], **solved._asdict()}), flush=True)

        print(json.dumps({"ready": True}), flush=True)
        while line := await lines.readline():
            group.create_task(answer(json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
