"""Searches of this process over a model that another server serves: a library, without a server of Banyan's own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from deployments.backends.capabilities import Capabilities
from deployments.backends.generator import UrlGenerator
from deployments.backends.messages import MessageEncoder
from deployments.backends.models import CONTEXT_TOKENS
from deployments.backends.pool import Pool
from deployments.backends.probing import asked
from deployments.backends.settings import VOTE, BackendSettings
from search.answers.equivalence import AnswerMatcher
from search.ports import StepScorer
from search.prompt import Prompt
from search.rewards import NoScorer
from search.run.environment import Fallback, SearchEnvironment
from search.run.report import SearchOutcome
from search.run.runner import run_search
from search.settings import parse_search
from search.templates import TEMPLATES, composed


class Connection:
    """A model behind a URL, and what it can do."""

    def __init__(self, capabilities: Capabilities, environment: SearchEnvironment, has_rewards: bool) -> None:
        self.capabilities = capabilities
        self.environment = environment
        """For `search.run_search`, whose prompts are chats here: ``Prompt(messages=…)``."""
        self._has_rewards = has_rewards

    async def answer(
        self, question: str | Sequence[Mapping[str, Any]], search: Mapping[str, Any] = VOTE
    ) -> SearchOutcome:
        """Searches for the answer to a question, or to the last message of a chat.

        ``search``: as in a request's field of that name. Without it eight solutions vote.

        Raises:
            ValueError: a setting is wrong, or the search needs what the backend lacks or a reward model that is not
                there. The message begins with the setting's name.
            SearchError: the search ended without an answer.
        """
        settings = parse_search(dict(search))
        if settings.strategy.is_scored and not self._has_rewards:
            raise ValueError(f"strategy: {settings.strategy.needs}: connect with a scorer")
        if lack := self.capabilities.lacks(settings):
            raise ValueError(lack)
        chat = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        prompt, text = _prompt(chat), str(chat[-1]["content"])
        return await run_search(text, prompt, settings, self.environment, search_id=uuid4().hex, messages=chat)


@asynccontextmanager
async def connect(
    url: str | BackendSettings,
    model: str | None = None,
    *,
    scorer: StepScorer | None = None,
    capabilities: Capabilities | None = None,
) -> AsyncIterator[Connection]:
    """Connects to a backend for as long as the block lasts.

    Args:
        url: OpenAI's base URL, or settings that have it with a key and limits.
        model: the backend's name of the model; None: the only one that it has.
        scorer: rewards of steps, for strategies that need them.
        capabilities: what the backend can do, if that is known; else it is asked, by a dozen small requests.

    Raises:
        BackendError: the backend cannot be reached, wants another key, or cannot answer an ordinary question.
        ValueError: a setting is wrong, the backend has no such model, or several and none is named.
    """
    settings = url if isinstance(url, BackendSettings) else BackendSettings(url=url)
    pool, matcher = Pool(settings), AnswerMatcher()
    try:
        can, _ = await asyncio.gather(_found(settings, model, capabilities), matcher.start())
        context = can.context_tokens or CONTEXT_TOKENS
        environment = SearchEnvironment(
            generator=UrlGenerator(pool, can),
            scorer=scorer or NoScorer(),
            context_tokens=context,
            matcher=matcher,
            fallback=Fallback.NEUTRAL if scorer else Fallback.FAIL,
            compose=_context,
            thinking_context=context if can.thinks else 0,
        )
        yield Connection(can, environment, scorer is not None)
    finally:
        matcher.close()
        await pool.aclose()


def _prompt(chat: Sequence[Mapping[str, Any]]) -> Prompt:
    return MessageEncoder(thinks=False).prompt(chat)


def _context(chat: Sequence[Mapping[str, Any]], template: str, shown: Sequence[str], note: str) -> Prompt:
    """The prompt of a chat in which the model reads solutions; see `SearchEnvironment.compose`."""
    return _prompt(composed(chat, TEMPLATES[template], shown, note))


async def _found(settings: BackendSettings, model: str | None, known: Capabilities | None) -> Capabilities:
    return known or await asked(settings, model)
