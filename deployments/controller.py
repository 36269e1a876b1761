"""The SearchController deployment: the HTTP ingress, and the process in which searches run."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.admission.auth import ApiKeys
from deployments.admission.flow import Flow
from deployments.admission.stopping import OpenRequests, StoppingMiddleware
from deployments.backends.capabilities import Capabilities
from deployments.backends.messages import MessageEncoder
from deployments.calls.handles import HandleGenerator, HandleScorer
from deployments.calls.last_words import last_words_of
from deployments.calls.pool import Pool, replicas_of
from deployments.calls.serve_calls import Retries, everywhere
from deployments.config import AppConfig
from deployments.engines.encoding import ChatEncoder
from deployments.engines.reasoning import marks_of
from deployments.engines.settings import GeneratorSettings
from deployments.engines.tokenizers import load_tokenizer, require_chat_template
from deployments.engines.tool_parsers import call_marks
from deployments.http.app import create_app
from deployments.http.chat.jobs import Jobs
from deployments.http.chat.search_settings import SettingsResolver
from deployments.http.endpoint import Endpoint
from deployments.http.health import Health
from deployments.http.in_cluster.in_process import InProcessEndpoint, Reply
from deployments.http.in_cluster.ray_data_rows import reply_to
from deployments.http.store_access import StoreAccess
from deployments.loop.delay import LoopDelay
from deployments.loop.garbage import GarbagePolicy
from deployments.scaling.pressure import PRESSURE
from deployments.service.answer_cache import AnswerCache
from deployments.service.code_answers import CodeAnswers
from deployments.service.completions import CompletionService
from deployments.service.live import LiveSettings
from deployments.service.schemas import SchemaCosts
from deployments.service.searches import SearchService
from deployments.service.slots import Slots
from deployments.service.suspects import Suspects
from deployments.service.tool_calls import ToolCallParser
from deployments.startup.access import (
    AccessError,
    changed_settings,
    endpoint_host,
    read_user_config,
    require_authenticated_cluster,
    require_keys,
)
from deployments.startup.nodes import Built
from deployments.store import Store
from deployments.telemetry.controller_telemetry import ControllerTelemetry
from search.answers.equivalence import AnswerMatcher
from search.rewards import NoScorer
from search.run.environment import SearchEnvironment
from search.run.solver import ProcessSolver
from search.tools.quick_import import quick_import

QUERY_TIMEOUT_S = 10.0
"""Timeout of one query to all replicas of a deployment."""


@serve.ingress()
class SearchControllerReplica:
    """The class of each controller replica. It has no engine: it holds a tokenizer, the running searches, and the
    handles of the generator and the PRM."""

    async def __init__(  # type: ignore[misc]
        self,
        config: AppConfig,
        generator: DeploymentHandle[Any],
        prm: DeploymentHandle[Any] | None,
        built: Built | None = None,
        batches: DeploymentHandle[Any] | None = None,
        backend: Capabilities | None = None,
    ) -> None:
        """``prm``: None without a reward model. ``batches``: handle of BatchRunner; None without a store. ``backend``:
        what the generator's server can do; None where the generator is an engine.

        Raises:
            NodeDiffers: the node differs from the one where the application was built.
            AccessError: the cluster has no token authentication.
            ValueError: the default search is malformed, or the generator has no tokenizer or no chat template.
            OSError: the store's directory cannot be used.
            OtherStore: on this node the store's directory holds another store.
            SolverError: the solver's process cannot be started, or cannot import the function of step_clusters.
        """
        if built:
            built.check()
        require_authenticated_cluster(config.http)
        self._config = config
        self._keys = ApiKeys()
        self._open_requests = OpenRequests()
        async with asyncio.timeout(QUERY_TIMEOUT_S):
            self._host = await endpoint_host()
        self._handles = {"generator": generator} | ({"prm": prm} if prm is not None else {})
        self._batches = batches
        controller = config.controller
        store = Store.of(controller.store)
        if store is not None:
            await asyncio.to_thread(store.prepare, built.store if built else None)
        self._telemetry = ControllerTelemetry(config.telemetry, config.log_level)
        self._matcher = AnswerMatcher()
        self._solver = ProcessSolver(controller.step_clusters)
        encoder, *_ = await asyncio.gather(
            asyncio.to_thread(_encoder, config, backend), self._matcher.start(), self._solver.start()
        )
        thinks = encoder.marks is not None if backend is None else backend.thinks
        retries, searches = Retries.of(controller), self._telemetry.searches
        suspects = Suspects(self._telemetry.found_harmful)
        pools = {
            name: Pool(
                name, suspects, partial(replicas_of, handle), getattr(config, name).replicas.min_replicas, last_words_of
            )
            for name, handle in self._handles.items()
        }
        written_by = HandleGenerator(generator, retries, pools["generator"], searches)
        environment = SearchEnvironment(
            generator=written_by,
            scorer=(
                HandleScorer(prm, retries, controller.prm_patience_s, pools["prm"], searches)
                if prm is not None
                else NoScorer()
            ),
            context_tokens=config.search_context,
            matcher=self._matcher,
            solver=self._solver,
            fallback=controller.fallback,
            extract_answer=controller.extractor,
            step_hook=(
                controller.step_hook.hook(partial(encoder.encode_text, written=True), self._telemetry.hook_called)
                if controller.step_hook
                else None
            ),
            tool=controller.tools.python.request if controller.tools.python else None,
            thinking_context=config.generator.max_model_len if thinks else 0,
            thought_is_over=encoder.thought_is_over if isinstance(encoder, ChatEncoder) else lambda prompt: False,
            scores_thinking=controller.prm_reads_thinking,
            prices=config.prices,
            model=config.generator.served_name,
        )
        self._garbage = GarbagePolicy(is_busy=lambda: self._service.running > 0)
        queue = controller.queue
        freed = self._garbage.place_freed
        slots = Slots(controller.searches, queue.places, queue.seconds, freed, controller.flex_places)
        verifier = config.execution
        self._code_answers = CodeAnswers(verifier.workers, verifier.limits) if verifier else None
        self._service = SearchService(
            environment, slots, controller.limits.seconds, searches.observed, suspects, self._code_answers
        )
        self._live = LiveSettings(controller, self._service)
        self._loop_delay = LoopDelay()
        self._answers = AnswerCache.of(controller.answer_cache)
        self._schemas = self._tool_calls = None
        if isinstance(config.generator, GeneratorSettings) and isinstance(encoder, ChatEncoder):
            self._schemas = SchemaCosts(lambda: encoder.spelling)
            parser = config.generator.tool_parser or encoder.tool_parser
            self._tool_calls = ToolCallParser(config.generator.model_dump_json(), parser) if parser else None
        self._telemetry.start(slots, self._loop_delay, self._answers)
        timeout_s = config.http.canary_timeout_s
        canaries = {name: lambda handle=handle: _canary(handle, timeout_s) for name, handle in self._handles.items()}
        self._endpoint = Endpoint(
            served_name=config.generator.served_name,
            live=self._live,
            jobs=Jobs(config, self._live, SettingsResolver.of(config, backend), encoder, self._tool_calls),
            searches=self._service,
            completions=CompletionService(self._service, written_by),
            health=Health(canaries, config.http),
            operations=self,
            strategies=controller.catalog,
            loop_delay=self._loop_delay,
            refused=self._telemetry.refused,
            kept=StoreAccess(store, self._live) if store else None,
            open_requests=self._open_requests,
            schemas=self._schemas,
            answers=self._answers,
            allowed_origins=config.http.allowed_origins,
            trusted_proxies=config.http.trusted_proxies,
            host=self._host,
        )
        self._inside = InProcessEndpoint(self._app(None), self._keys)
        self._garbage.start()
        self._loop_delay.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return self._app(self._keys)

    async def answer(self, method: str, path: str, body: bytes, owner: str | None = None) -> Reply:
        """Returns the endpoint's complete answer to a request: status, headers and body.

        For jobs on the cluster, which need neither HTTP nor a key. They compete for slots with all other requests and
        together count as one client. A request with an ``owner``, such as a batch's, has the limits and the cache salt
        of the owner's API key.

        Raises:
            httpx.InvalidURL: the path is malformed.
        """
        return await self._inside.answer(method, path, body, owner)

    async def answer_row(self, row: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yields the endpoint's complete answer to a row of a Ray Data pipeline, as one item; see
        `deployments.http.in_cluster.ray_data_rows`.

        Raises:
            ValueError, TimeoutError, RuntimeError: see `reply_to`.
        """
        yield await reply_to(row, self.answer)

    def _app(self, keys: ApiKeys | None) -> FastAPI:
        app = create_app(self._endpoint, keys)
        app.add_middleware(StoppingMiddleware, open_requests=self._open_requests)
        app.add_middleware(Flow)
        return app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve with the deployment's ``user_config``, at the start and after every change.

        Raises:
            AccessError: it is malformed, or has no API keys although the endpoint needs some. Serve then stops the
                replica.
        """
        parsed = read_user_config(user_config)
        settings = changed_settings(self._config, parsed)
        require_keys(parsed.keys, self._config.http, self._host)
        self._keys.replace(parsed.keys)
        self._live.change(settings)

    async def check_health(self) -> None:
        """Called by Serve before the first request and every few seconds.

        Raises:
            AccessError: the replica has received no ``user_config``, and so does not know the API keys.
        """
        if not self._keys.told:
            raise AccessError("SearchController has no user_config, which should contain its API keys")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the pool autoscales; see `deployments.scaling.pressure`."""
        slots = self._service.slots
        return {PRESSURE: (slots.held + slots.waiting) / slots.count}

    async def stop(self, grace_s: float) -> None:
        """Refuses new requests and waits for those at work. A request that is not done within ``grace_s`` seconds is
        ended with an error."""
        await self._open_requests.close(grace_s)

    async def status(self) -> dict[str, Any]:
        """The status page: this replica's searches, every engine's counters, and problems found by `integrity`."""
        counters = await asyncio.gather(
            *(everywhere(handle, "stats", QUERY_TIMEOUT_S) for handle in self._handles.values())
        )
        return {
            "searches": self._service.running,
            "queued": self._service.slots.waiting,
            "loop_delay_s": round(self._loop_delay.seconds, 3),
            **({"prm_card": card.verdict} if (card := self._config.prm.card) else {}),
            **({"batches": await self._batch_status(self._batches)} if self._batches else {}),
            **{
                name: [_reply_or_error(reply) for reply in replies]
                for name, replies in zip(self._handles, counters, strict=True)
            },
            "integrity": await self.integrity(),
        }

    async def _batch_status(self, batches: DeploymentHandle[Any]) -> list[Any]:
        return [_reply_or_error(reply) for reply in await everywhere(batches, "status", QUERY_TIMEOUT_S)]

    async def integrity(self) -> list[str]:
        """Leak check of this replica and all engines: a sentence for everything left over although nothing runs.
        Meaningful only while no search runs."""
        found = self._service.check_integrity() + (self._answers.check_integrity() if self._answers else [])
        problems = [f"controller: {problem}" for problem in found]
        for name, handle in self._handles.items():
            for index, reply in enumerate(await everywhere(handle, "check_integrity", QUERY_TIMEOUT_S)):
                found = [type(reply).__name__] if isinstance(reply, Exception) else reply
                problems += [f"{name} {index}: {problem}" for problem in found]
        return problems

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped, and by Python, also after a failed start."""
        for name in ("_matcher", "_solver", "_schemas", "_tool_calls", "_code_answers", "_telemetry", "_answers"):
            if (worker := getattr(self, name, None)) is not None:
                worker.close()


SearchController = serve.deployment(
    name="SearchController",
    health_check_period_s=5.0,
    health_check_timeout_s=20.0,
    graceful_shutdown_wait_loop_s=0.2,
)(SearchControllerReplica)
"""Bind it with ``AppConfig`` and the handles of Generator and ProcessRewardModel."""


def _encoder(config: AppConfig, backend: Capabilities | None) -> ChatEncoder | MessageEncoder:
    """What makes prompts of chats, or passes them on to a backend that does. Raises ValueError as `_chat_encoder`."""
    if isinstance(config.generator, GeneratorSettings):
        return _chat_encoder(config.generator)
    if config.generator.tokenizer is not None:
        return _chat_encoder(GeneratorSettings(model=config.generator.tokenizer))
    return MessageEncoder(thinks=backend is not None and backend.thinks)


def _chat_encoder(generator: GeneratorSettings) -> ChatEncoder:
    """As `load_encoder`. The check when the application is built may not have seen the model.

    Raises:
        ValueError: it has no tokenizer, or no chat template.
    """
    encoder = load_encoder(generator)
    require_chat_template(encoder, generator)
    return encoder


def load_encoder(generator: GeneratorSettings | str) -> ChatEncoder:
    """The generator's tokenizer and chat template, without its weights.

    ``generator``: its settings, or the directory or hub id of its model.

    Raises:
        ValueError: it has no tokenizer, or none with the marks of ``reasoning``, or the file of the chat template
            cannot be read.
    """
    quick_import("transformers.models.auto.tokenization_auto")
    settings = GeneratorSettings(model=generator) if isinstance(generator, str) else generator
    tokenizer = load_tokenizer(settings)
    return ChatEncoder(tokenizer, marks_of(settings.reasoning, tokenizer), call_marks(settings.tool_parser, tokenizer))


async def _canary(handle: DeploymentHandle[Any], timeout_s: float) -> float:
    """Runs a canary on one replica, which Serve picks; returns its seconds. The timeout also holds on the replica."""
    seconds: float = await handle.canary.remote(timeout_s)
    return seconds


def _reply_or_error(reply: Any) -> Any:
    return {"error": type(reply).__name__} if isinstance(reply, Exception) else reply
