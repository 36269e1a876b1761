"""Which threshold of ``controller.answer_cache`` answers other wordings of a question, and no other question?

Pairs of questions, each with whether they mean the same: paraphrases and near misses of the embedded problems, or the
lines of a file (``{"one": …, "other": …, "same": true}``). For each threshold: the share of paraphrases that would hit,
and the number of near misses that would, by the cosine alone and with equal marks
(`deployments.service.question_guard`), as the cache compares. Then every question is asked of an `AnswerCache` that
holds all problems.

    python -m benchmarks.answer_cache
    python -m benchmarks.answer_cache --embedding my_package.embeddings:vectors --pairs pairs.jsonl
"""

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.record import claim, show_claims, write_result
from deployments.config import AnswerCacheSettings
from deployments.embedded.problems import Operation, Problem, Split, draw_problems
from deployments.engines.settings import EMBEDDED_MODELS
from deployments.service.answer_cache import AnswerCache, Question, digest_of
from deployments.service.question_guard import marks_of
from search.answers.voting import AnswerGroup, AnswerSelection
from search.run.report import SearchCost, SearchOutcome, StopReason
from search.tools.import_path import imported_function
from search.tree import SearchTree, Step, StepEnd

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995)
EMBEDDINGS = ["benchmarks.answer_cache:ngrams", "benchmarks.answer_cache:hidden_states"]
DIMENSIONS = 4_096
NGRAM_LENGTHS = (2, 3, 4)
ANOTHER_PROBLEM = "another problem"
"""The kind of a pair of two problems in the same words."""
ASKED_OTHERWISE = frozenset({"digits asked", "spelling asked"})
"""Kinds of near misses whose marks are equal: only the cosine can tell them apart."""
SEED = 1
console = Console()

Vectors = NDArray[np.float32]


class Pair(NamedTuple):
    one: str
    other: str
    same: bool
    """Whether they mean the same."""
    kind: str
    """How the other one was made."""


def ngrams(texts: Sequence[str]) -> Vectors:
    """An embedding without a model: counts of the character n-grams within words, with a space before and after each.

    Feature hashing (Weinberger et al. 2009): an n-gram's CRC-32 gives its dimension and the sign with which it counts,
    so that n-grams in the same dimension do not add up on average.
    """
    vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
    for vector, text in zip(vectors, texts, strict=True):
        for word in text.lower().split():
            padded = f" {word} "
            for length in NGRAM_LENGTHS:
                for start in range(len(padded) - length + 1):
                    digest = crc32(padded[start : start + length].encode())
                    vector[digest % DIMENSIONS] += 1 if digest >> 31 else -1
    return vectors


def hidden_states(texts: Sequence[str]) -> Vectors:
    """A model that was not made for it: the mean of the embedded generator's last hidden states."""
    return np.stack([_hidden_state(text) for text in texts])


@cache
def _hidden_state(text: str) -> Vectors:
    import torch

    torch.set_num_threads(1)
    encode, model = _embedded_generator()
    with torch.inference_mode():
        vector: Vectors = model(torch.tensor([encode(text)])).last_hidden_state[0].mean(0).numpy()
    return vector


@cache
def _embedded_generator() -> tuple[Callable[[str], list[int]], Callable[..., Any]]:
    from transformers import AutoModel, AutoTokenizer

    directory = str(EMBEDDED_MODELS / "generator")
    return AutoTokenizer.from_pretrained(directory).encode, AutoModel.from_pretrained(directory).eval()


def pairs_of(problems: Sequence[Problem]) -> Iterator[Pair]:
    """Paraphrases and near misses of each problem."""
    for problem, next_one in zip(problems, (*problems[1:], problems[0]), strict=True):
        text = problem.text
        for kind, other in paraphrases(problem):
            yield Pair(text, other, True, kind)
        for kind, other in near_misses(problem):
            yield Pair(text, other, False, kind)
        yield Pair(text, replace(next_one, phrasing=problem.phrasing).text, False, ANOTHER_PROBLEM)


def paraphrases(problem: Problem) -> Iterator[tuple[str, str]]:
    text = problem.text
    *steps, _ = re.split(r"(?<=\.) ", text)
    yield "polite", f"Hello! Can you please solve this? {text} Thank you."
    yield "another question", " ".join([*steps, "Tell me the final value."])
    yield "one sentence", ", then ".join(each[0].lower() + each[1:-1] for each in steps) + ": what comes out?"
    yield "capitals", text.upper()
    for phrasing in {0, 1, 2} - {problem.phrasing}:
        yield "other words", replace(problem, phrasing=phrasing).text


def near_misses(problem: Problem) -> Iterator[tuple[str, str]]:
    """Questions in almost the same words with another answer. Those that happen to have the same are left out."""
    operations = list(problem.operations)
    first, second = operations[:2]
    others = [
        ("another number", problem.start, [first._replace(operand=first.operand + 1), *operations[1:]]),
        ("another start", problem.start + 10, operations),
        ("numbers exchanged", first.operand, [first._replace(operand=problem.start), *operations[1:]]),
        ("another operation", problem.start, [_turned(first), *operations[1:]]),
        ("steps exchanged", problem.start, [second, first, *operations[2:]]),
        ("step left out", problem.start, operations[:-1]),
        ("step added", problem.start, [*operations, Operation("+", 2)]),
    ]
    for kind, start, changed in others:
        other = replace(problem, start=start, operations=tuple(changed))
        if other.answer != problem.answer:
            yield kind, other.text
    *steps, _ = re.split(r"(?<=\.) ", problem.text)
    yield "double asked", " ".join([*steps, "What is twice the result?"])
    yield "evenness asked", " ".join([*steps, "Is the result odd?"])
    yield "digits asked", " ".join([*steps, "How many digits has the result?"])
    yield "spelling asked", " ".join([*steps, "How is the result spelled in French?"])
    yield (
        "negation",
        problem.text.replace(". What", ". Do not do the last step. What").replace(
            ". Where", ". Do not do the last step. Where"
        ),
    )


def _turned(operation: Operation) -> Operation:
    return operation._replace(symbol={"+": "-", "-": "+", "*": "+"}[operation.symbol])


def pairs_in(path: Path) -> list[Pair]:
    """The pairs of a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [Pair(each["one"], each["other"], bool(each["same"]), each.get("kind", "given")) for each in lines]


async def unit_vectors(texts: Sequence[str], embedding: str) -> dict[str, Vectors]:
    """The vector of each distinct text, of length 1."""
    distinct = list(dict.fromkeys(texts))
    rows = imported_function(embedding)(distinct)
    vectors = np.asarray(await rows if inspect.isawaitable(rows) else rows, np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return dict(zip(distinct, vectors, strict=True))


async def measured(pairs: Sequence[Pair], embedding: str) -> list[dict[str, Any]]:
    """A row for each threshold: shares of paraphrases and numbers of near misses that hit."""
    vectors = await unit_vectors([text for pair in pairs for text in (pair.one, pair.other)], embedding)
    cosines = [float(vectors[pair.one] @ vectors[pair.other]) for pair in pairs]
    equal = [marks_of(pair.one) == marks_of(pair.other) for pair in pairs]
    rows = []
    for threshold in THRESHOLDS:
        hits = [cosine >= threshold for cosine in cosines]
        row: dict[str, Any] = {"threshold": threshold}
        for name, hit in (("cosine", hits), ("with_marks", [a and b for a, b in zip(hits, equal, strict=True)])):
            right = [each for each, pair in zip(hit, pairs, strict=True) if pair.same]
            wrong = [each for each, pair in zip(hit, pairs, strict=True) if not pair.same]
            row[name] = {
                "hit_rate": round(sum(right) / max(1, len(right)), 3),
                "wrong_hits": sum(wrong),
                "of": len(wrong),
            }
        rows.append(row)
    return rows


def by_kind(pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """For each kind of pair, how many have equal marks."""
    kinds: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        of = kinds.setdefault(pair.kind, {"same": pair.same, "pairs": 0, "equal_marks": 0})
        of["pairs"] += 1
        of["equal_marks"] += marks_of(pair.one) == marks_of(pair.other)
    return kinds


async def asked_of_a_cache(pairs: Sequence[Pair], embedding: str, threshold: float) -> dict[str, int]:
    """Asks each pair's second question of a cache that knows all first ones, and counts the answers: of paraphrases, of
    near misses, and by another question than that of the pair."""
    answers = AnswerCache(AnswerCacheSettings(embedding=embedding, threshold=threshold, embedding_timeout_s=30))
    for text in dict.fromkeys(pair.one for pair in pairs):
        question = _question(text)
        answers.keep(question, await answers.vector_of(question), _outcome(text), [])
    counts = {"asked": 0, "right": 0, "wrong": 0, "by_another": 0}
    for pair in pairs:
        if pair.kind == ANOTHER_PROBLEM:  # It is in the cache, in other words.
            continue
        counts["asked"] += 1
        match, _ = await answers.match(_question(pair.other))
        if match is not None:
            by_pair = match.kept.question.text == pair.one
            counts[("right" if pair.same else "wrong") if by_pair else "by_another"] += 1
    answers.close()
    return counts


def _question(text: str) -> Question:
    return Question(digest_of(text), b"one conversation", text)


def _outcome(text: str) -> SearchOutcome:
    tree = SearchTree()
    [node] = tree.request(tree.root, 1)
    tree.write(node, Step((1,), text, StepEnd.END_OF_SEQUENCE), ends=True)
    group = AnswerGroup(text, 1, Fraction(1), 1.0, 1.0, node, 1.0)
    selection = AnswerSelection(node, text, 1.0, 1.0, (group,))
    return SearchOutcome("s", 0, tree, selection, text, StopReason.FINISHED, False, SearchCost())


async def compared(pairs: Sequence[Pair], embedding: str, validation: Sequence[Pair]) -> dict[str, Any]:
    """The rows of an embedding, which are shown, and what a cache answers ``pairs`` at the lowest threshold that has no
    wrong hit on the ``validation`` pairs."""
    rows = await measured(pairs, embedding)
    chosen_on = rows if validation is pairs else await measured(validation, embedding)
    table = Table("threshold", "hits", "wrong hits", "hits, equal marks", "wrong hits, equal marks", title=embedding)
    for row in rows:
        cells = [f"{each[name]}" for each in (row["cosine"], row["with_marks"]) for name in ("hit_rate", "wrong_hits")]
        table.add_row(f"{row['threshold']:g}", *cells)
    console.print(table)
    safe = next((row["threshold"] for row in chosen_on if row["with_marks"]["wrong_hits"] == 0), None)
    counts = None if safe is None else await asked_of_a_cache(pairs, embedding, safe)
    return {"embedding": embedding, "rows": rows, "lowest_safe": safe, "in_a_cache": counts}


def claims_of(results: Sequence[dict[str, Any]], kinds: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    equal = sum(of["equal_marks"] for kind, of in kinds.items() if not of["same"] and kind not in ASKED_OTHERWISE)
    yield claim("near misses with another number, operation or order, and equal marks", equal, "0", equal == 0)
    unequal = sum(of["pairs"] - of["equal_marks"] for of in kinds.values() if of["same"])
    yield claim("paraphrases with other marks", unequal, "0", unequal == 0)
    for each in results:
        counts = each["in_a_cache"] or {"wrong": 0, "by_another": 0}
        wrong = counts["wrong"] + counts["by_another"]
        name = f"{each['embedding']}: wrong hits in a cache, at {each['lowest_safe']}, safe on validation problems"
        yield claim(name, wrong, "0", wrong == 0)


def main(
    embedding: Annotated[
        list[str], typer.Option(help="package.module:function; several to compare them.")
    ] = EMBEDDINGS,
    pairs: Annotated[Path | None, typer.Option(help="A file of pairs of your own.")] = None,
    problems: Annotated[int, typer.Option(min=2, max=2_000)] = 50,
) -> None:
    if pairs:
        every = validation = pairs_in(pairs)
    else:
        every, validation = (
            list(pairs_of(list(islice(draw_problems(split, SEED), problems))))
            for split in (Split.TEST, Split.VALIDATION)
        )

    async def all_compared() -> list[dict[str, Any]]:
        return [await compared(every, name, validation) for name in embedding]

    results = asyncio.run(all_compared())
    kinds = by_kind(every)
    table = Table("pairs", "mean the same", "number", "equal marks")
    for kind, of in kinds.items():
        table.add_row(kind, "yes" if of["same"] else "no", str(of["pairs"]), str(of["equal_marks"]))
    console.print(table)
    if pairs is None:
        claims = list(claims_of(results, kinds))
        show_claims(console, claims)
        figures = {"problems": problems, "kinds": kinds, "embeddings": results, "claims": claims}
        path = write_result("answer_cache", figures)
        console.print(f"kept in {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    typer.run(main)
