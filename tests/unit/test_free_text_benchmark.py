"""The benchmark of votes over free text judges one text, the largest group and the medoid by the same texts."""

import re
from collections.abc import Sequence

import pytest

from benchmarks.free_text import QUESTIONS, SIDES, Asked, judged
from deployments.config import TextAnswerSettings
from deployments.service.embedding import TextEmbedder


def angles(texts: Sequence[str]) -> list[list[float]]:
    return [[float(part) for part in text.split()[:2]] for text in texts]


def test_there_are_100_different_questions_with_patterns() -> None:
    lines = [line.rpartition(" = ") for line in QUESTIONS.read_text().splitlines()]
    assert len({question for question, _, _ in lines}) == 100
    assert all(re.compile(pattern) and not re.search(pattern, "", re.IGNORECASE) for _, _, pattern in lines)


async def test_each_side_is_judged_by_the_text_that_it_picks() -> None:
    settings = TextAnswerSettings(embedding=f"{__name__}:angles", threshold=0.99, embedding_timeout_s=5)
    embedder = TextEmbedder(settings)
    # Sums of cosines: the twins 3.11, the text between the others 3.40.
    texts = ["1 0 twin", "1 0  TWIN", "0.766 0.643 between", "0.342 0.94 far"]
    found = await judged(Asked("?", texts, [True, True, False, False]), embedder)
    embedder.close()
    assert found == {SIDES[0]: pytest.approx(0.5), SIDES[1]: 1.0, SIDES[2]: 0.0}
