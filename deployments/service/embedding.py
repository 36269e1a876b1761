"""Vectors of texts, by a function of the operator's own."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.config import TextAnswerSettings
from search.tools.import_path import imported_function, is_async

logger = logging.getLogger("banyan.embedding")

MAX_DIMENSIONS = 16_384

Vector = NDArray[np.float32]
"""A vector of length 1, so that the product of two is their cosine."""
EmbeddingFunction = Callable[[Sequence[str]], "Any | Awaitable[Any]"]
"""Takes texts and returns a vector of numbers for each, all of one dimension."""


class Embedder:
    """Calls the function: a coroutine function in the event loop, any other in one thread.

    A failure is no error of the request whose texts they are: they get no vectors.
    """

    def __init__(self, function: EmbeddingFunction, timeout_s: float, setting: str) -> None:
        """``setting``: path of the setting that names the function, for the log."""
        self._function = function
        self._is_async = is_async(function)
        self._timeout_s = timeout_s
        self._setting = setting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding")
        self._overdue: Future[Any] | None = None
        """The call that did not return in time: a thread cannot be stopped."""
        self._dimensions = 0
        self._failing = False
        self.failures = 0
        """Number of texts that got no vector."""

    async def vector_of(self, text: str) -> Vector | None:
        """The vector of a text; None if the function fails, is late, or returns anything else."""
        vectors = await self.vectors_of([text])
        return None if vectors is None else vectors[0]

    async def vectors_of(self, texts: Sequence[str], timeout_s: float = math.inf) -> Sequence[Vector] | None:
        """The vectors of texts, by one call, which may take ``timeout_s`` and the embedder's own timeout at most; None
        as for `vector_of`."""
        try:
            vectors = self._checked(await self._called([*texts], min(timeout_s, self._timeout_s)), len(texts))
        except Exception as error:  # an operator's function may raise anything, and time is up with a TimeoutError
            self.failures += len(texts)
            # One line for a row of failures; the traceback, as it may quote a text, is debug.
            if not self._failing:
                logger.warning("%s failed: %s", self._setting, type(error).__name__)
                logger.debug("%s failed", self._setting, exc_info=error)
            self._failing = True
            return None
        self._failing = False
        return vectors

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _called(self, texts: list[str], timeout_s: float) -> Any:
        if self._overdue is not None and not self._overdue.done():
            raise TimeoutError("an earlier call has not returned")
        async with asyncio.timeout(timeout_s):
            if self._is_async:
                return await self._function(texts)
            call = self._thread.submit(self._function, texts)
            try:
                return await asyncio.wrap_future(call)
            except asyncio.CancelledError:
                if call.running():
                    self._overdue = call
                raise

    def _checked(self, rows: Any, count: int) -> Sequence[Vector]:
        """Raises ValueError unless ``rows`` are ``count`` vectors of the dimension of those before, none of them
        zero."""
        vectors = np.asarray(rows, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[0] != count or not 1 <= vectors.shape[1] <= MAX_DIMENSIONS:
            raise ValueError(f"there must be one vector for each text, not the shape {vectors.shape}")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise ValueError("a vector is zero or not finite")
        if self._dimensions not in (0, vectors.shape[1]):
            raise ValueError(f"the vectors have {vectors.shape[1]} dimensions; those before had {self._dimensions}")
        self._dimensions = vectors.shape[1]
        return [*(vectors / lengths)]


class TextEmbedder(Embedder):
    """The embedding of answers that are free text; see `search.answers.meaning.TextEmbedding`."""

    def __init__(self, settings: TextAnswerSettings) -> None:
        super().__init__(imported_function(settings.embedding), settings.embedding_timeout_s, "text_answers.embedding")
        self.threshold = settings.threshold

    @classmethod
    def of(cls, settings: TextAnswerSettings | None) -> "TextEmbedder | None":
        return None if settings is None else cls(settings)
