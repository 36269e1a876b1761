"""The endpoint over fake ports that answer arithmetic without an engine."""

import asyncio
import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from cluster.client.client import Client
from deployments.admission.auth import ApiKeys
from deployments.admission.keys import key_record
from deployments.admission.proxy import middlewares
from deployments.backends.messages import MessageEncoder
from deployments.config import AppConfig, KeyRecord
from deployments.engines.tool_support import ToolSupport
from deployments.http.app import create_app
from deployments.http.chat.jobs import Jobs
from deployments.http.chat.search_settings import SettingsResolver
from deployments.http.endpoint import Endpoint
from deployments.http.health import Health
from deployments.http.in_cluster.in_process import InProcessEndpoint
from deployments.http.store_access import StoreAccess
from deployments.loop.delay import LoopDelay
from deployments.service.answer_cache import AnswerCache
from deployments.service.code_answers import CodeAnswers
from deployments.service.completions import CompletionService
from deployments.service.contexts import ContextPrompts
from deployments.service.embedding import TextEmbedder
from deployments.service.live import LiveSettings
from deployments.service.schemas import SchemaCosts
from deployments.service.searches import SearchService
from deployments.service.slots import Slots
from deployments.service.tool_calls import Said
from deployments.store import Store
from search.answers.equivalence import AnswerMatcher
from search.answers.tool_calls import ToolCall
from search.errors import GeneratorError, PromptTooLong
from search.ports import (
    Branch,
    Child,
    ChildGroup,
    ExpandRequest,
    Headroom,
    Lane,
    Sampling,
    ScoreRequest,
    StopCondition,
    TokenBeamReply,
    TokenBeamRequest,
    WrittenSequence,
)
from search.rewards import RewardRows, ScoringCost
from search.run.environment import SearchEnvironment
from search.token_beam import BeamSequence
from search.tree import NO_THOUGHT, Step, StepEnd, Thought

DEPTH = 3
"""Steps of a solution by the fake generator."""
STEP_TOKENS = 5


class Letters:
    """An encoder with one token per letter."""

    vocabulary = 256
    longest_token = 1

    def __init__(self) -> None:
        self.tokenized = 0
        """Letters that became tokens."""

    def encode_text(self, text: str, written: bool = False, max_tokens: int | None = None) -> list[int]:
        if max_tokens is not None and len(text) > max_tokens:
            raise PromptTooLong(f"at least {len(text)} tokens")
        self.tokenized += len(text)
        return [ord(letter) for letter in text]

    marks: object | None = None
    template_variables = frozenset({"enable_thinking", "opens_thought"})
    tool_support = ToolSupport(tools=True, calls=True, results=True)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        options = "".join(f"<{name}={value}>" for name, value in (template_kwargs or {}).items())
        turns = "".join(
            f"<{message['role']}>{message.get('reasoning_content', '')}{message['content']}" for message in messages
        )
        if tools or any("tool_calls" in message or "tool_call_id" in message for message in messages):
            turns = json.dumps([*messages, *tools])
        return self.encode_text(turns + options, max_tokens=max_tokens)

    def open_thought(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """As if the template opened a thought where it is told to."""
        return "<think>" if (template_kwargs or {}).get("opens_thought") else ""

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Every token is three letters, except 1, which ends the solution."""
        return ["" if token == 1 else f"{token:03}" for token in token_ids]


class TaggedCalls:
    """Reads calls as JSON between tags."""

    def start(self) -> None: ...

    async def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Said:
        found = [json.loads(each) for each in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)]
        calls = tuple(ToolCall(each["name"], json.dumps(each["arguments"])) for each in found)
        return Said(text.partition("<tool_call>")[0] if calls else text, calls)


class FakeGenerator:
    """Writes solutions of `DEPTH` steps that end in 42 or 41. Tests can make it wait or fail."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.running = 0
        self.calls = 0
        self.cached = 0
        self.max_children: int | None = None
        """Children that it writes below a node in one call; it gives the others back."""
        self.beams: list[TokenBeamRequest] = []
        self.salts: set[str] = set()
        self.samplings: set[Sampling] = set()
        self.lanes: set[Lane] = set()
        self.texts: Sequence[str] = ()
        """Whole solutions that it writes in place of its own, by the index of the branch."""
        self.prompts: list[str] = []
        self.schemas: list[str] = []
        """The JSON schema of each call; empty: any text."""

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.calls += 1
        self.running += 1
        self.salts.add(request.cache_salt)
        self.samplings.add(request.sampling)
        self.schemas.append(request.json_schema)
        self.lanes.add(request.lane)
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            if self.max_children is not None and (
                given_back := tuple(
                    Child(part.parent, branch.index, (), 0)
                    for part in request.expansions
                    for branch in part.branches[self.max_children :]
                )
            ):
                yield ChildGroup(given_back, Headroom(3, 12, 0, 0))
            for part in request.expansions:
                self.prompts.append("".join(map(chr, part.prefix)))
                yield ChildGroup(
                    tuple(
                        Child(part.parent, branch.index, self._written(part.parent, branch, request), self.cached)
                        for branch in part.branches[: self.max_children]
                    )
                )
        finally:
            self.running -= 1

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Continues every prompt with the letters from a on; the first beam has ended, the others are truncated."""
        self.beams.append(request)
        self.running += 1
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            row = tuple(
                WrittenSequence(chr(97 + beam), BeamSequence((97 + beam,), -1.0 - beam, -0.5 - beam, beam == 0))
                for beam in range(request.settings.width)
            )
            again = 20 if request.settings.skip_reading_prefix_cache else 0
            return TokenBeamReply((row,) * len(request.prompts), generated_tokens=7, recomputed_tokens=again)
        finally:
            self.running -= 1

    def _written(self, parent: tuple[int, ...], branch: Branch, request: ExpandRequest) -> tuple[Step, ...]:
        if not self.texts:
            return self._steps(parent, branch.seed, request)
        text = self.texts[branch.index % len(self.texts)]
        # A text that ends in … is cut off by a limit.
        end = StepEnd.LENGTH if text.endswith("…") else StepEnd.END_OF_SEQUENCE
        text = text.removesuffix("…")
        characters = len(text) - len(text.partition("</think>")[2])
        thought = Thought(STEP_TOKENS - 2, characters) if request.thought else NO_THOUGHT
        logprobs = (-0.25,) * STEP_TOKENS if request.logprobs else None
        return (Step((7,) * STEP_TOKENS, text, end, token_logprobs=logprobs, thought=thought),)

    def _steps(self, parent: tuple[int, ...], seed: int, request: ExpandRequest) -> tuple[Step, ...]:
        if request.stop_condition is StopCondition.STEP:
            return (self._step(len(parent) + 1, seed, request.logprobs),)
        return tuple(self._step(depth, seed, request.logprobs) for depth in range(len(parent) + 1, DEPTH + 1))

    def _step(self, depth: int, seed: int, logprobs: bool) -> Step:
        logprob_fields = (-0.25 * STEP_TOKENS, (-0.25,) * STEP_TOKENS) if logprobs else ()
        if depth < DEPTH:
            return Step(
                (seed % 97,) * STEP_TOKENS, f"step {depth}, {seed % 97}\n\n", StepEnd.DELIMITER, *logprob_fields
            )
        return Step((1,) * STEP_TOKENS, f"\\boxed{{{41 + seed % 2}}}", StepEnd.END_OF_SEQUENCE, *logprob_fields)


def letter_counts(texts: Sequence[str]) -> list[list[int]]:
    """An embedding: how often each letter is in a text."""
    return [[text.lower().count(chr(letter)) for letter in range(97, 123)] for text in texts]


def found(directory: Path, pattern: str) -> list[Path]:
    """Paths in a directory that match a pattern."""
    return list(directory.glob(pattern))


class FakeScorer:
    """Rewards by a hash of the step, so that equal trees have equal rewards."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.cost = ScoringCost()
        """What a call costs the reward model."""
        self.running = 0
        self.salts: set[str] = set()
        self.questions: set[str] = set()
        self.lanes: set[Lane] = set()

    async def score(self, request: ScoreRequest) -> RewardRows:
        self.salts.add(request.cache_salt)
        self.questions.add(request.question)
        self.lanes.add(request.lane)
        if self.error is not None:
            raise self.error
        rows = RewardRows([self._reward(text) for text in item.steps[-item.unscored :]] for item in request.items)
        rows.cost = self.cost
        return rows

    def _reward(self, text: str) -> float:
        return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] / 255


class World:
    """One endpoint, and everything that tests change in it."""

    def __init__(
        self,
        matcher: AnswerMatcher,
        keys: Sequence[str] | None = (),
        records: Sequence[KeyRecord] = (),
        schemas: SchemaCosts | None = None,
        **controller: Any,
    ) -> None:
        http = {"isolate_keys": controller.pop("isolate_keys", True), **controller.pop("http", {})}
        context = controller.pop("max_model_len", 512)
        thinks = controller.pop("thinks", False)
        prm = {"prm": controller.pop("prm")} if "prm" in controller else {}
        scorer = controller.pop("scorer", None)
        backend, generator = controller.pop("backend", None), controller.pop("generator", None)
        encoder = controller.pop("encoder", None)
        url = {"url": "http://backend"} if backend else {}
        search = {} if backend else {"default_search": {"strategy": "beam_search", "n": 4, "m": 2}}
        limits = {"body_bytes": 64 * 1024, "seconds": 20.0, **controller.pop("limits", {})}
        self.config = AppConfig.model_validate(
            {
                "generator": {"served_name": "m", "max_model_len": context, **url},
                "controller": {**search, "limits": limits} | controller,
                "http": {"canary_timeout_s": 0.1, "canary_every_s": 0, **http},
                **prm,
            }
        )
        self.encoder: Any = MessageEncoder(backend.thinks) if backend else encoder or Letters()
        if not backend:
            self.encoder.marks = object() if thinks else None
        self.generator: Any = generator or FakeGenerator()
        self.scorer = scorer or FakeScorer()
        settings = self.config.controller
        self.environment = SearchEnvironment(
            self.generator,
            self.scorer,
            self.config.generator.max_model_len,
            matcher,
            settings.fallback,
            settings.extractor,
            compose=ContextPrompts(self.encoder, settings.known_templates),
            text_embedding=TextEmbedder.of(settings.text_answers),
            thinking_context=context if thinks else 0,
            step_hook=settings.step_hook.hook(self.encoder.encode_text) if settings.step_hook else None,
        )
        queue = settings.queue
        slots = Slots(settings.searches, queue.places, queue.seconds, flex_share=settings.flex_places)
        verifier = self.config.execution
        self.code_answers = CodeAnswers(verifier.workers, verifier.limits) if verifier else None
        self.service = SearchService(self.environment, slots, settings.limits.seconds, code_answers=self.code_answers)
        self.live = LiveSettings(settings, self.service)
        self.loop_delay = LoopDelay()
        self.store = Store.of(settings.store)
        if self.store is not None:
            self.store.prepare()
        self.answers = AnswerCache.of(settings.answer_cache)
        self.jobs = Jobs(self.config, self.live, SettingsResolver.of(self.config, backend), self.encoder, TaggedCalls())
        endpoint = Endpoint(
            served_name=self.config.generator.served_name,
            live=self.live,
            jobs=self.jobs,
            searches=self.service,
            completions=CompletionService(self.service, self.generator),
            health=Health({"generator": self._canary, "prm": self._prm_canary}, self.config.http),
            operations=self,
            strategies=settings.catalog,
            loop_delay=self.loop_delay,
            schemas=schemas,
            answers=self.answers,
            kept=StoreAccess(self.store, self.live) if self.store else None,
            allowed_origins=self.config.http.allowed_origins,
            trusted_proxies=self.config.http.trusted_proxies,
        )
        self.known = ApiKeys(keys if keys is None else [*map(key_record, keys), *records])
        self.app: FastAPI = create_app(endpoint, self.known)
        self._endpoint = endpoint
        self.open_requests = endpoint.open_requests

    async def status(self) -> dict[str, Any]:
        return {"searches": self.service.running, "integrity": self.service.check_integrity()}

    async def _canary(self) -> float:
        await self.generator.gate.wait()
        if self.generator.error:
            raise self.generator.error
        return 0.001

    async def _prm_canary(self) -> float:
        if self.scorer.error:
            raise self.scorer.error
        return 0.001

    @cached_property
    def _inside(self) -> InProcessEndpoint:
        return InProcessEndpoint(create_app(self._endpoint, None), self.known)

    @property
    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost", timeout=30)

    def client_of(self, owner: str) -> Client:
        """A client like the batch runner's, which sends requests for the owner of a batch."""

        async def answer(request: httpx.Request) -> httpx.Response:
            content = await request.aread()
            status, headers, reply = await self._inside.answer(request.method, request.url.path, content, owner)
            return httpx.Response(status, headers=headers, content=reply)

        return Client("http://127.0.0.1", transport=httpx.MockTransport(answer), waits_for_room=False)

    def assert_idle(self) -> None:
        assert self.service.check_integrity() == []
        assert self.generator.running == 0


@asynccontextmanager
async def served(world: World) -> AsyncIterator[str]:
    """The endpoint on a real socket, behind the protocol and the middleware of the proxy."""
    app: Any = world.app
    for each in middlewares():
        app = each.cls(app, *each.args, **each.kwargs)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


def chat(**fields: Any) -> dict[str, Any]:
    """A valid request, except for ``fields``."""
    return {"model": "m", "messages": [{"role": "user", "content": "6*7?"}], "seed": 1, **fields}


def generator_is_dead() -> GeneratorError:
    return GeneratorError("the engine is dead")
