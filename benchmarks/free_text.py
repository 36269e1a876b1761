"""Does the medoid of several free texts answer better than a single one?

100 questions of general knowledge whose answers have several right wordings (``free_text_questions.txt``: a question,
and a pattern that right answers match). A served model writes ``n`` texts for each, in a sentence of its own, and the
same texts are judged in three ways: one text alone (the mean over all), the medoid of all, and the largest group's
medoid, by an embedding. All texts of a question are in one search, so the comparison is paired.

    python -m benchmarks.free_text --url http://127.0.0.1:8000 --embedding my_package.embeddings:vectors --threshold 0.9
"""

import asyncio
import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from benchmarks.record import claim, show_claims, write_result
from cluster.client.client import Client
from cluster.client.replies import Question
from cluster.evaluation.loop import problem_seed
from cluster.evaluation.paired_bootstrap import paired_bootstrap
from deployments.config import TextAnswerSettings
from deployments.service.embedding import TextEmbedder
from search.answers.meaning import compared, normalized
from search.training_data import ended_paths

QUESTIONS = Path(__file__).with_name("free_text_questions.txt")
INSTRUCTION = "Answer in one short sentence of your own words."
MAX_TOKENS = 96
SIDES = ("one text", "the largest group", "the medoid of all")
console = Console()


class Asked(NamedTuple):
    """A question with its texts, each as often as it was written."""

    question: str
    texts: list[str]
    right: list[bool]


async def asked(client: Client, line: str, n: int) -> Asked:
    question, _, pattern = line.rpartition(" = ")
    search: dict[str, object] = {"strategy": "self_consistency", "n": n, "max_path_tokens": MAX_TOKENS}
    reply = await client.ask(Question(f"{question} {INSTRUCTION}", search, seed=problem_seed(1, question), tree=True))
    assert reply.tree is not None
    paths = ended_paths(reply.tree.nodes)
    texts = ["".join(node.solution for node in path) for path in paths for _ in range(path[-1].count)]
    return Asked(question, texts, [re.search(pattern, text, re.IGNORECASE) is not None for text in texts])


async def judged(each: Asked, embedder: TextEmbedder) -> dict[str, float]:
    """Whether a question is answered rightly, by side; for one text, the chance."""
    first: dict[str, tuple[int, str]] = {}
    names = [first.setdefault(normalized(text), (len(first), text))[0] for text in each.texts]
    vectors = await embedder.vectors_of([text for _, text in first.values()])
    if vectors is None:
        raise ValueError("the embedding failed")
    by_group, of_all = (
        compared(names, [1.0] * len(names), vectors, embedder.threshold, by_group=by_group).best
        for by_group in (True, False)
    )
    rights = (statistics.fmean(each.right), float(each.right[by_group]), float(each.right[of_all]))
    return dict(zip(SIDES, rights, strict=True))


async def measured(url: str, n: int, in_flight: int, embedder: TextEmbedder) -> dict[str, Any]:
    lines = QUESTIONS.read_text().splitlines()
    room = asyncio.Semaphore(in_flight)
    async with Client(url, api_key=os.environ.get("BANYAN_API_KEY"), timeout_s=3600.0) as client:

        async def of(line: str) -> Asked:
            async with room:
                return await asked(client, line, n)

        pools = await asyncio.gather(*map(of, lines))
        model = await client.model()
    rights = [await judged(each, embedder) for each in pools]
    return {
        "model": model,
        "questions": len(pools),
        "texts": n,
        "threshold": embedder.threshold,
        "right": {side: round(statistics.fmean(each[side] for each in rights), 4) for side in SIDES},
        "some_text_right": round(statistics.fmean(any(each.right) for each in pools), 4),
        "less_one_text": {side: _difference(rights, side) for side in SIDES[1:]},
        "right_by_question": [[each.question, sum(each.right), len(each.right)] for each in pools],
    }


def _difference(rights: Sequence[dict[str, float]], side: str) -> dict[str, float]:
    one, other = ({str(index): each[name] for index, each in enumerate(rights)} for name in (SIDES[0], side))
    found = paired_bootstrap(one, other)
    return {name: round(getattr(found, name), 4) for name in ("mean", "low", "high")}


def main(
    embedding: Annotated[str, typer.Option(help="package.module:function, as controller.text_answers.embedding.")],
    url: Annotated[str, typer.Option(help="URL of the endpoint.")] = "http://127.0.0.1:8000",
    threshold: Annotated[float, typer.Option(help="Least cosine of texts that mean the same.")] = 0.9,
    n: Annotated[int, typer.Option(help="Texts of a question.")] = 8,
    in_flight: Annotated[int, typer.Option(help="Concurrent questions.")] = 8,
    output: Annotated[Path | None, typer.Option(help="File of the result. Unset: benchmarks/results.")] = None,
) -> None:
    """Measure the medoid of free texts against a single one."""
    settings = TextAnswerSettings(embedding=embedding, threshold=threshold, embedding_timeout_s=60.0)
    embedder = TextEmbedder(settings)
    figures = asyncio.run(measured(url, n, in_flight, embedder))
    embedder.close()
    low = figures["less_one_text"][SIDES[2]]["low"]
    figures["claims"] = [claim("the medoid less one text, lower bound", low, "> 0", low > 0)]
    console.print(figures["right"], figures["less_one_text"])
    show_claims(console, figures["claims"])
    console.print(f"written: {write_result('free_text', {'embedding': embedding, **figures}, output)}")


if __name__ == "__main__":
    typer.run(main)
