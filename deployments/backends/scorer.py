"""`search.ports.StepScorer` over a backend: a reward model that another server serves, or a model that judges."""

import asyncio
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from deployments.backends.errors import BackendError, Fault
from deployments.backends.pool import Pool
from deployments.backends.prm_settings import UrlPrmSettings
from deployments.backends.usage import Usage
from deployments.backends.verdicts import verdict_of
from deployments.backends.wire import Json
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.function import CallScorer, step_ends
from deployments.engines.rewards.generative import VerifierSettings
from deployments.engines.rewards.heads import Head
from deployments.engines.tokenizers import load_tokenizer
from search.errors import ScorerError, ScorerRefused
from search.ports import ScoreRequest
from search.rewards import RewardRows, ScoringCost
from search.tools.fair_slots import Requester

START_S = 20.0
"""Timeout of the question which models a server has."""
CALL_TOKENS = 1 << 16
"""Tokens of the paths that one call scores, or one path: rows come back as text, some 20 bytes a number."""
CUT_S = 2.0
"""Time before a call's deadline at which the critiques that are not finished are given up."""
CUT_SHARE = 0.1
"""The same as a share of the call's time, where that is less."""
ALL_TOKENS = '{"tok_pooling_type": "ALL"}'
"""vLLM's setting by which it pools nothing."""
NO_VERDICT = 0.5
"""Reward of a step about which no critique came to a verdict."""

Result = TypeVar("Result")


class Query(NamedTuple):
    """A path whose last steps are scored by one list of tokens."""

    token_ids: list[int]
    steps: int
    """Number of steps that have a tag in it."""
    tags: tuple[int, ...]
    """Positions at which the unscored steps are read, the last of those."""


class UrlScorer(CallScorer):
    """Scores steps by a backend. What a server answers is checked as an engine's rewards are.

    ``pooling``: the tokens of each path, as its family encodes them for our own engines, come back as rows of numbers:
    of all tokens, or of the tags alone where the server pools by step. ``score``: each unscored step is the score of
    the question and the path up to it. ``chat``: each is the mean verdict of ``samples`` critiques; a step about which
    no critique came to a verdict gets 0.5, and the search is degraded.
    """

    def __init__(self, settings: UrlPrmSettings) -> None:
        super().__init__(settings.endpoints[0].url, settings.max_num_seqs)
        self._settings = settings
        self._pool: Pool | None = None
        self._model = settings.model or ""
        self._head: Head | None = None

    async def start(self, stat_loggers: Sequence[object] = ()) -> None:
        """Reads the key, asks for the model's name, and loads the tokenizer. Raises EngineStartError."""
        try:
            self._pool = Pool(self._settings)
            if not self._model:
                deadline = asyncio.get_running_loop().time() + START_S
                self._model = _first_model(await self._pool.get("/v1/models", deadline=deadline))
            family = self._settings.format
            if self._settings.endpoint == "pooling" and family is not None:
                head = family.reader(family, load_tokenizer(family))
                assert isinstance(head, Head)
                self._head = head
        except (BackendError, ValueError) as error:
            await self.close()
            raise EngineStartError(f"prm.{error}" if isinstance(error, ValueError) else f"prm: {error}") from None

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Asks for the models, which costs nothing, and returns the seconds it took. Raises ScorerError."""
        started = time.monotonic()
        async with self._backend_errors():
            await self._started.get("/v1/models", deadline=asyncio.get_running_loop().time() + deadline_s)
        return time.monotonic() - started

    async def rows(self, request: ScoreRequest, requester: Requester | None) -> RewardRows:
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        async with self._backend_errors():
            if self._settings.endpoint == "pooling":
                return await self._pooled(request, deadline, requester)
            if self._settings.endpoint == "score":
                return await self._scored(request, deadline, requester)
            return await self._judged(request, deadline, requester)

    async def close(self) -> None:
        """Closes all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    def shutdown(self) -> None:
        with suppress(RuntimeError):  # no event loop: the connections end with this process
            self._closing = asyncio.get_running_loop().create_task(self.close())

    @property
    def _started(self) -> Pool:
        if self._pool is None:
            raise ScorerError(f"{self._name} is not started")
        return self._pool

    @asynccontextmanager
    async def _backend_errors(self) -> AsyncIterator[None]:
        """Raises what a backend does wrong as ScorerError, with the fault in words."""
        try:
            yield
        except (BackendError, ExceptionGroup) as error:
            first: Exception = error
            while isinstance(first, ExceptionGroup):
                first = first.exceptions[0]
            if isinstance(first, BackendError):
                kind = ScorerRefused if first.fault is Fault.REFUSED else ScorerError
                raise kind(str(first)) from None
            if isinstance(first, ScorerError):
                raise first from None
            raise

    async def _post(self, path: str, body: Json, deadline: float, requester: Requester | None) -> Json:
        self._running += 1
        self._called += 1
        try:
            return await self._started.post(
                path, {"model": self._model, **body}, deadline=deadline, requester=requester
            )
        finally:
            self._running -= 1

    async def _pooled(self, request: ScoreRequest, deadline: float, requester: Requester | None) -> RewardRows:
        head = self._head
        assert head is not None
        try:
            paths = [[*_queries(head, request.question, item.steps, item.unscored)] for item in request.items]
        except ValueError as error:
            raise ScorerRefused(f"a path cannot be encoded: {error}") from None
        chunks = [*_chunks([query for path in paths for query in path])]
        replies = await _together(
            self._post(
                "/pooling",
                {
                    "input": [query.token_ids for query in chunk],
                    "task": "token_classify",
                    "use_activation": False,
                    "encoding_format": "float",
                },
                deadline,
                requester,
            )
            for chunk in chunks
        )
        found: list[list[float]] = []
        for chunk, reply in zip(chunks, replies, strict=True):
            found += [
                [_reward(row) for row in _tagged(each, query, head.classes)]
                for query, each in zip(chunk, _data(reply, len(chunk), "data"), strict=True)
            ]
        of = iter(found)
        rows = RewardRows([reward for _ in path for reward in next(of)] for path in paths)
        read = sum(len(query.token_ids) for path in paths for query in path)
        rows.cost = ScoringCost(prompt_tokens=read)
        return rows

    async def _scored(self, request: ScoreRequest, deadline: float, requester: Requester | None) -> RewardRows:
        documents = [["".join(item.steps[:end]) for end in step_ends(item)] for item in request.items]
        body = {"text_1": request.question, "text_2": [text for path in documents for text in path]}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        reply = await self._post("/score", body, deadline, requester)
        scores = iter(_data(reply, len(body["text_2"]), "score"))
        rows = RewardRows([next(scores) for _ in path] for path in documents)
        read = "".join(request.question + text for path in documents for text in path)
        rows.cost = ScoringCost(prompt_tokens=Usage.of(reply, read, "", 0).input_tokens)
        return rows

    async def _judged(self, request: ScoreRequest, deadline: float, requester: Requester | None) -> RewardRows:
        verifier = self._settings.format
        assert isinstance(verifier, VerifierSettings)
        paths = [
            [verifier.verifier_template.messages(request.question, item.steps[:end]) for end in step_ends(item)]
            for item in request.items
        ]
        # Equal paths, as of siblings, are judged once.
        asked = list({json.dumps(chat): chat for path in paths for chat in path}.items())
        # Critiques that finish count, whatever becomes of the others.
        cut_at = deadline - min(CUT_S, CUT_SHARE * request.deadline_s)
        results = await asyncio.gather(
            *(
                self._critique(verifier, name, chat, number, cut_at, requester)
                for name, chat in asked
                for number in range(verifier.samples)
            ),
            return_exceptions=True,
        )
        critiques = [result for result in results if isinstance(result, _Critique)]
        verdicts: dict[str, list[float]] = {name: [] for name, _ in asked}
        for critique in critiques:
            if critique.verdict is not None:
                verdicts[critique.of].append(critique.verdict)
        if not any(verdicts.values()) and (failures := [each for each in results if isinstance(each, Exception)]):
            raise failures[0]
        names = [[json.dumps(chat) for chat in path] for path in paths]
        rows = RewardRows([fmean(verdicts[name] or [NO_VERDICT]) for name in path] for path in names)
        rows.unsure = frozenset(index for index, path in enumerate(names) if not all(verdicts[name] for name in path))
        rows.cost = ScoringCost.total(critique.cost for critique in critiques)
        return rows

    async def _critique(
        self,
        verifier: VerifierSettings,
        name: str,
        chat: list[dict[str, str]],
        number: int,
        deadline: float,
        requester: Requester | None,
    ) -> "_Critique":
        body = {
            "messages": chat,
            "max_tokens": verifier.max_tokens,
            "temperature": verifier.temperature,
            "top_p": verifier.top_p,
            "seed": _critique_seed(name, number),
            "logprobs": True,
            "top_logprobs": 20,
        }
        if verifier.top_k:
            body["top_k"] = verifier.top_k
        reply = await self._post("/v1/chat/completions", body, deadline, requester)
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else None
        if not isinstance(text, str):
            raise ScorerError(f"{self._name} returned no text")
        usage = Usage.of(reply, name, text, verifier.max_tokens)
        cut = choice.get("finish_reason") == "length"
        cost = ScoringCost(
            usage.input_tokens, usage.cached_tokens, 0, usage.output_tokens, critiques=1, cut_critiques=int(cut)
        )
        template = verifier.verifier_template
        return _Critique(name, verdict_of(text, choice.get("logprobs"), template.cue or "", template.labels), cost)


class _Critique(NamedTuple):
    of: str
    verdict: float | None
    cost: ScoringCost


async def _together(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of calls that are made at once. If one fails the others end. Raises ExceptionGroup."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]


def _queries(head: Head, question: str, steps: Sequence[str], unscored: int) -> Iterable[Query]:
    """What is sent to score the last steps of a path: one list of tokens, or one for each step where the family reads
    each path's end alone. Raises ValueError."""
    if head.step_by_step:
        for end in range(len(steps) - unscored + 1, len(steps) + 1):
            token_ids, tags = head.encode(question, steps[:end])
            yield Query(token_ids, len(tags), tuple(tags))
        return
    token_ids, tags = head.encode(question, steps)
    yield Query(token_ids, len(tags), tuple(tags[-unscored:]))


def _chunks(queries: Sequence[Query]) -> Iterable[list[Query]]:
    chunk: list[Query] = []
    tokens = 0
    for query in queries:
        if chunk and tokens + len(query.token_ids) > CALL_TOKENS:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(query)
        tokens += len(query.token_ids)
    if chunk:
        yield chunk


def _data(reply: Json, number: int, name: str) -> list[Any]:
    """A field of each of the objects under ``data``, in the order of their ``index``. Raises ScorerError."""
    data = reply.get("data")
    if not isinstance(data, list) or len(data) != number or not all(isinstance(each, dict) for each in data):
        raise ScorerError(f"the reply does not have data of {number} paths")
    by_index = {each.get("index", place): each.get(name) for place, each in enumerate(data)}
    if by_index.keys() != {*range(number)}:
        raise ScorerError("the data of the reply are not numbered")
    return [by_index[index] for index in range(number)]


def _tagged(rows: Any, query: Query, classes: int) -> list[list[float]]:
    """The rows at a query's tags. Raises ScorerError: there are other rows than one for each token, or each step."""
    whole = isinstance(rows, list) and len(rows) == len(query.token_ids)
    if not whole and not (isinstance(rows, list) and len(rows) == query.steps):
        number = len(rows) if isinstance(rows, list) else "no"
        raise ScorerError(
            f"the reply has {number} rows for {len(query.token_ids)} tokens and {query.steps} steps; vLLM returns one "
            f"for each token if it is started with --pooler-config '{ALL_TOKENS}'"
        )
    found = [rows[tag] for tag in query.tags] if whole else rows[-len(query.tags) :]
    for row in found:
        numbers = isinstance(row, list) and all(isinstance(each, int | float) for each in row)
        if not numbers or len(row) != classes:
            raise ScorerError(f"a row of the reply does not have {classes} numbers")
    return found


def _reward(row: Sequence[float]) -> float:
    """As `Head.rewards_of`, of one row: the sigmoid of a single number, or the softmax probability of all classes but
    the first one."""
    highest = max(row)
    if len(row) == 1:
        return 1 / (1 + math.exp(-highest)) if highest > -700 else 0.0
    shares = [math.exp(each - highest) for each in row]
    return sum(shares[1:]) / sum(shares)


def _first_model(reply: Json) -> str:
    models = reply.get("data")
    first = models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else None
    if not isinstance(first, str) or not first:
        raise ValueError("model: the server names none at /v1/models; set it")
    return first


def _critique_seed(name: str, number: int) -> int:
    """The sampling seed of critique ``number`` of a path: non-negative, 63 bits."""
    digest = hashlib.blake2b(f"{number}:{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
