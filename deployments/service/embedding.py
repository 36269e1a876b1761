"""Vectors of questions, by a function of the operator's own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.tools.import_path import is_async

logger = logging.getLogger("banyan.answer_cache")

MAX_DIMENSIONS = 16_384

Vector = NDArray[np.float32]
"""A vector of length 1, so that the product of two is their cosine."""
EmbeddingFunction = Callable[[Sequence[str]], "Any | Awaitable[Any]"]
"""Takes texts and returns a vector of numbers for each, all of one dimension."""


class Embedder:
    """Calls the function with one text at a time: a coroutine function in the event loop, any other in one thread.

    A failure is no error of the request whose question it was: it gets no vector.
    """

    def __init__(self, function: EmbeddingFunction, timeout_s: float) -> None:
        self._function = function
        self._is_async = is_async(function)
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding")
        self._overdue: Future[Any] | None = None
        """The call that did not return in time: a thread cannot be stopped."""
        self._dimensions = 0
        self._failing = False
        self.failures = 0
        """Number of texts that got no vector."""

    async def vector_of(self, text: str) -> Vector | None:
        """The vector of a text; None if the function fails, is late, or returns anything else."""
        try:
            vector = self._checked(await self._called([text]))
        except Exception as error:  # an operator's function may raise anything, and time is up with a TimeoutError
            self.failures += 1
            # One line for a row of failures; the traceback, as it may quote the question, is debug.
            if not self._failing:
                logger.warning("answer_cache.embedding failed: %s", type(error).__name__)
                logger.debug("answer_cache.embedding failed", exc_info=error)
            self._failing = True
            return None
        self._failing = False
        return vector

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _called(self, texts: list[str]) -> Any:
        if self._overdue is not None and not self._overdue.done():
            raise TimeoutError("an earlier call has not returned")
        async with asyncio.timeout(self._timeout_s):
            if self._is_async:
                return await self._function(texts)
            call = self._thread.submit(self._function, texts)
            try:
                return await asyncio.wrap_future(call)
            except asyncio.CancelledError:
                if call.running():
                    self._overdue = call
                raise

    def _checked(self, rows: Any) -> Vector:
        """Raises ValueError unless ``rows`` is one vector of the dimension of those before, and not zero."""
        vectors = np.asarray(rows, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[0] != 1 or not 1 <= vectors.shape[1] <= MAX_DIMENSIONS:
            raise ValueError(f"there must be one vector for each text, not the shape {vectors.shape}")
        length = float(np.linalg.norm(vectors))
        if not np.isfinite(length) or not length:
            raise ValueError("the vector is zero or not finite")
        if self._dimensions not in (0, vectors.shape[1]):
            raise ValueError(f"the vector has {vectors.shape[1]} dimensions; those before it had {self._dimensions}")
        self._dimensions = vectors.shape[1]
        vector: Vector = vectors[0] / np.float32(length)
        return vector
