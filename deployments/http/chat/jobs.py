"""Turns requests into jobs: checks the model, resolves the settings, and tokenizes the prompt, which must fit the
context."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from deployments.admission.errors import BadRequest, context_exceeded
from deployments.admission.service_tier import DEFAULT, FLEX
from deployments.backends.messages import MessageEncoder
from deployments.config import AppConfig, ControllerSettings, KeyRecord, LimitSettings
from deployments.http import replies
from deployments.http.chat.chat_windows import NOTE, as_side_call, is_side_call
from deployments.http.chat.conversation import question, turns
from deployments.http.chat.schema import ChatRequest, CompletionBody, ScoreBody
from deployments.http.chat.search_settings import SettingsResolver, default_of, notes
from deployments.http.chat.tool_requests import (
    ReadCalls,
    ToolSupport,
    call_reader,
    check_tools,
    tool_notes,
    with_tools,
)
from deployments.http.choices import ChoiceOptions
from deployments.http.fields import MAX_NAMED, unknown_notes
from deployments.http.json_body import Body
from deployments.http.replies import Head
from deployments.service.completions import CompletionJob
from deployments.service.contexts import Chat
from deployments.service.live import LiveSettings
from deployments.service.searches import ScoreJob, SearchJob
from search.answers.checks import Checks, checks_of
from search.answers.thoughts import parts
from search.errors import PromptTooLong
from search.ports import Lane, ScoreItem, ScoreRequest, TokenBeamRequest
from search.prompt import Prompt
from search.settings import SearchSettings, Thinking
from search.templates import Message, composed
from search.token_beam import TokenBeamSettings
from search.tools.listing import listed
from search.tree import Prefill

NO_BACKEND_TOOLS = "tools: not yet supported in front of a backend (generator.url)"
NO_BACKEND_LOGPROBS = "logprobs: the tokens of a backend (generator.url) are known where generator.tokenizer is set"
NO_TOKEN_BEAM = "token-level beam search needs an engine; this server is in front of a backend (generator.url)"
SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Variables by which chat templates ask for no thinking, if they are false."""


class Encoder(Protocol):
    """The generator's chat template and tokenizer; see `deployments.engines.encoding.ChatEncoder`."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def longest_token(self) -> int: ...

    def encode_text(self, text: str, written: bool = False, max_tokens: int | None = None) -> list[int]: ...

    @property
    def marks(self) -> object | None:
        """Those of the generator's thinking; None if it is not told from the text behind it."""

    @property
    def template_variables(self) -> frozenset[str]: ...

    @property
    def tool_support(self) -> ToolSupport: ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]: ...

    def open_thought(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str: ...

    def token_texts(self, token_ids: Sequence[int]) -> list[str]: ...


class Jobs:
    """Makes jobs for one served model under one set of limits."""

    def __init__(
        self,
        config: AppConfig,
        live: LiveSettings,
        resolver: SettingsResolver,
        encoder: Encoder | MessageEncoder,
        calls: ReadCalls | None = None,
    ) -> None:
        """``encoder``: a `MessageEncoder` where the generator encodes chats itself. ``calls``: reads the model's tool
        calls; None: nothing does."""
        self._live = live
        self._calls = calls
        self._context = config.generator.max_model_len
        self._is_backend = config.backend is not None
        self._batch = 1 if self._is_backend else config.generator_engine.max_num_seqs
        self._search_context = config.search_context
        self._delimiter = config.generator.step_delimiter
        self._prm = min(config.prm.engines.values(), key=lambda prm: prm.max_model_len, default=None)
        """The reward model with the shortest context; None for a function."""
        self._tokens_per_step = max((prm.tokens_per_step for prm in config.prm.engines.values()), default=0)
        self._runs_programs = config.execution is not None
        self._scores_thinking = config.controller.prm_reads_thinking
        self._isolates_keys = config.http.isolate_keys
        self._keeps = config.controller.store.path is not None
        self._resolver = resolver
        self._encoder = encoder
        self.unknown_fields = config.http.unknown_fields
        """What becomes of unknown fields of a request."""

    @property
    def example_aliases(self) -> list[str]:
        """Aliases of the model that can be searched with here."""
        return self._resolver.example_aliases

    def check_model(self, name: str) -> None:
        """Raises NotFound unless a request may name this model."""
        self._resolver.check_model(name)

    def search(self, request: ChatRequest, key: KeyRecord | None = None) -> SearchJob:
        """Returns the job of a search.

        Raises:
            NotFound: unknown model.
            BadRequest: a setting is invalid, or the prompt does not fit the context.
        """
        now = self._live.now
        if isinstance(self._encoder, MessageEncoder) and request.offered:
            raise BadRequest(NO_BACKEND_TOOLS, "tools", "unsupported_parameter")
        check_tools(request, now, self._encoder)
        tools = [tool.shown for tool in request.offered]
        default = default_of(request.reasoning_effort, now)
        side_call = not tools and is_side_call(request, now.side_calls)
        if side_call:
            thinks = self._encoder.marks is not None or not SWITCHES.isdisjoint(self._encoder.template_variables)
            request, default = as_side_call(request, default, thinks)
        elif tools:
            default = with_tools(request, default, now)
        settings = self._resolver.settings(request, self._limits(key), default)
        if isinstance(self._encoder, MessageEncoder) and request.logprobs:
            raise BadRequest(NO_BACKEND_LOGPROBS, "logprobs", "unsupported_parameter")
        json_schema = request.answer_schema.text
        if json_schema or tools:
            self._resolver.check_whole_solutions(settings, "tools" if tools else "response_format")
        if request.prefill and not self._resolver.continues:
            raise BadRequest(
                "messages: the backend cannot continue an answer that is begun", "messages", "unsupported_value"
            )
        if settings.strategy.starts_contexts and request.prefill:
            message = f"messages: strategy {settings.strategy.name} cannot continue an answer that is begun"
            raise BadRequest(message, "messages", "unsupported_value")
        # Prompts of agents are long, and one answer is not scored.
        unscored = bool(tools) and not settings.strategy.is_scored
        longest = self._context if unscored else self._search_context
        # A text that cannot fit the context is neither templated nor tokenized. Only the last turn counts: a template
        # may drop parts of earlier turns.
        asked = request.conversation
        min_tokens = (len(asked[-1].text) + len(request.prefill)) // self._encoder.longest_token
        if min_tokens >= longest:
            raise self._too_long(f"more than {min_tokens} tokens", longest)
        try:
            chat, kwargs = turns(asked, now.prompt), self._template_kwargs(request, settings)
            # Tokens of their own, as if the model had written them: no token spans the end of the template.
            written = self._encoder.encode_text(request.prefill, written=True) if request.prefill else []
            if isinstance(self._encoder, MessageEncoder):
                prompt, open_thought = self._encoder.prompt(chat, request.prefill, longest), ""
            else:
                ids = self._encoder.encode_chat(chat, template_kwargs=kwargs, max_tokens=longest, tools=tools)
                prompt = Prompt((*ids, *written))
                open_thought = self._encoder.open_thought(chat, template_kwargs=kwargs, tools=tools)
                if settings.strategy.starts_contexts:
                    self._check_further_message(chat, kwargs, settings.strategy.name, now)
        except PromptTooLong as error:
            raise self._too_long(str(error), longest) from None
        except ValueError as error:
            raise BadRequest(str(error), "messages") from None
        prefill = Prefill.of(request.prefill, self._delimiter)
        # The reward model's format adds tokens to each of the prefill's steps, which ``max_depth`` does not count.
        context = longest - self._tokens_per_step * len(prefill.steps)
        prompt_tokens = prompt.size
        if prompt_tokens >= context:
            raise self._too_long(f"{prompt_tokens} tokens", context)
        if context < longest:
            most = min(settings.max_path_tokens, context - prompt_tokens)
            settings = settings.model_copy(update={"max_path_tokens": most})
        prm_question = question(asked, conversation := now.prm_reads == "conversation")
        # The chat template may drop parts of earlier turns, but the reward model reads all of them.
        if conversation or asked[-1].role == "tool":
            try:
                tokens = len(self._encoder.encode_text(prm_question, max_tokens=context)) + len(written)
            except PromptTooLong as error:
                raise self._too_long(str(error), context) from None
            if tokens >= context:
                raise self._too_long(f"{tokens} tokens", context)
        checks = self._checks(request, settings, prm_question, limited=bool(json_schema or tools))
        own_seconds = "seconds" in ((request.search or {}).get("budget") or {})
        return SearchJob(
            uuid.uuid4().hex,
            prm_question,
            prompt,
            settings,
            self._cache_salt(key),
            own_seconds,
            flex=request.service_tier == FLEX,
            prefill=prefill,
            json_schema=json_schema,
            open_thought=open_thought,
            side_call=side_call,
            calls=call_reader(request, prompt.token_ids, now, self._calls, longest),
            checks=checks,
            chat=Chat(chat, kwargs, tools) if settings.strategy.starts_contexts else None,
        )

    def _check_further_message(
        self, chat: Sequence[Message], kwargs: Mapping[str, Any] | None, strategy: str, now: ControllerSettings
    ) -> None:
        """Raises BadRequest if solutions are read in a further message, behind a tool's result, and the generator's
        chat template takes none there. A backend's template is not known."""
        encoder = self._encoder
        if chat[-1]["role"] == "user" or isinstance(encoder, MessageEncoder):
            return
        try:
            encoder.encode_chat(composed(chat, now.known_templates["select"], [""]), template_kwargs=kwargs)
        except ValueError as error:
            message = f"messages: {strategy} asks in a further message, which the chat template does not take: {error}"
            raise BadRequest(message, "messages", "unsupported_value") from None

    def _checks(self, request: ChatRequest, settings: SearchSettings, asked: str, limited: bool) -> Checks | None:
        """Returns the checks of a program as answer; None if the answer is none.

        ``limited``: whether a response format or tools say what the answer is. Raises BadRequest.
        """
        path, own = "search.checks", "checks" in (request.search or {}) and settings.checks is not None
        if not self._runs_programs:
            if own:
                raise BadRequest(f"{path}: no program is run here (prm.family: execution)", path, "unsupported_value")
            return None
        if limited:
            if own:
                raise BadRequest(f"{path}: not together with tools or a response_format", path, "unsupported_value")
            return None
        most = self._live.now.limits.checks
        if own and len(settings.checks or ()) > most:
            raise BadRequest(
                f"{path} may be at most {most} here, not {len(settings.checks or ())}", path, "above_limit"
            )
        checks = checks_of(asked, settings.given_checks)
        return checks and checks._replace(checks=checks.checks[:most])

    def head(self, request: ChatRequest, job: SearchJob, reply_id: str, said: Body | None = None) -> Head:
        """Returns the part of the reply that is known before the search begins.

        Args:
            said: The client's own request where ``request`` was made from it.
        """
        strategy = job.settings.strategy
        return Head(
            reply_id=reply_id,
            created=replies.now(),
            model=request.model,
            strategy=strategy.name,
            n=getattr(strategy, "n", 1),
            prompt_tokens=job.prompt.size,
            temperature=strategy.temperature,
            notes=(
                *((NOTE,) if job.side_call else ()),
                *notes(request, job.settings),
                *self._template_notes(request),
                *self._thinking_notes(job.settings),
                *self._card_notes(job.settings),
                *self._store_notes(request),
                *tool_notes(request, strategy.name, getattr(strategy, "n", 1)),
                *_schema_notes(request),
                *unknown_notes(said or request),
            ),
            wanted=ChoiceOptions(
                request.n or 1, strategy.selection, bool(request.logprobs), self._encoder.token_texts, job.calls
            ),
            service_tier=FLEX if job.flex else DEFAULT,
        )

    def _template_notes(self, request: ChatRequest) -> list[str]:
        """Returns a note for each of ``chat_template_kwargs`` that the chat template does not read."""
        if not request.chat_template_kwargs:
            return []
        unread = request.chat_template_kwargs.keys() - self._encoder.template_variables
        return [
            f"chat_template_kwargs.{name[:64]}: the model's chat template does not read it" for name in sorted(unread)
        ]

    def _template_kwargs(self, request: ChatRequest, settings: SearchSettings) -> Mapping[str, Any] | None:
        """Returns the request's ``chat_template_kwargs``, with the template's switch if there is to be no thinking."""
        given = request.chat_template_kwargs
        if settings.budget.thinking != 0:
            return given
        return {**dict.fromkeys(SWITCHES & self._encoder.template_variables, False), **(given or {})}

    def _thinking_notes(self, settings: SearchSettings) -> list[str]:
        """Returns a note if the budget of thinking has no effect."""
        budget = settings.budget.thinking
        is_told = self._encoder.marks is not None and settings.thinking is Thinking.WHOLE
        if budget is None or is_told or (budget == 0 and SWITCHES & self._encoder.template_variables):
            return []
        lacks = "is not told from its answer (generator.reasoning, search.thinking)"
        switch = ", and its chat template has no switch for it" if budget == 0 else ""
        return [f"budget.thinking has no effect: this model's thinking {lacks}{switch}"]

    def _card_notes(self, settings: SearchSettings) -> list[str]:
        """Returns notes if the search uses a reward model, or a reader, that was measured to be worth nothing."""
        return [note for card in self._resolver.cards if (note := card.note(settings.strategy))]

    def _store_notes(self, request: ChatRequest) -> list[str]:
        return ["store: this server stores nothing"] if request.store and not self._keeps else []

    def completion(self, body: CompletionBody, key: KeyRecord | None = None) -> CompletionJob:
        """Returns the job of a token-level beam search.

        Raises:
            NotFound: unknown model.
            BadRequest: a prompt is malformed or does not fit the context, or the request is above a limit.
        """
        self.check_model(body.model)
        if self._is_backend:
            raise BadRequest(NO_TOKEN_BEAM, None, "unsupported_value")
        given = body.prompts()
        limits = self._limits(key)
        width = body.best_of or body.n
        total_tokens = len(given) * width * body.max_tokens
        if width > limits.n:
            path = "best_of" if body.best_of else "n"
            raise BadRequest(f"{path} may be at most {limits.n} here, not {width}", path, "above_limit")
        if total_tokens > limits.tokens:
            message = f"{len(given)} prompts x {width} beams x {body.max_tokens} tokens are {total_tokens} tokens"
            raise BadRequest(f"{message}; at most {limits.tokens} are allowed here", "max_tokens", "above_limit")
        encoded: list[tuple[int, ...]] = []
        # The first prompt that does not fit ends it: tokenizing a megabyte takes 1 s.
        for index, (path, text) in enumerate(given):
            prompt = self._encoded(path, text)
            if len(prompt) + body.max_tokens > self._context:
                fault = f"prompt {index} has {len(prompt)} tokens and {body.max_tokens} are asked for"
                raise context_exceeded(self._context, fault, "prompt")
            encoded.append(prompt)
        prompts = tuple(encoded)
        limit = body.concurrency_limit
        # More prompts at once than the engine's batch holds would gain nothing and keep other searches waiting.
        max_prompts = max(1, self._batch // width)
        settings = TokenBeamSettings(
            width=width,
            max_tokens=body.max_tokens,
            length_penalty=body.length_penalty,
            ignore_eos=body.ignore_eos,
            skip_reading_prefix_cache=body.skip_reading_prefix_cache,
            concurrency_limit=max_prompts if limit is None else max(1, min(limit, max_prompts)),
        )
        salt, lane = self._cache_salt(key), _lane(body.service_tier)
        request = TokenBeamRequest(uuid.uuid4().hex, prompts, settings, limits.seconds, salt, lane)
        return CompletionJob(request, body.n)

    def scoring(self, body: ScoreBody, key: KeyRecord | None = None) -> ScoreJob:
        """Returns the job that scores the steps of a path, without the thinking with which it begins if searches score
        none.

        Raises:
            NotFound: unknown model.
            BadRequest: more steps than a path may have, far more characters than the reward model's context holds, a
                text cannot be tokenized, or the steps are thinking alone.
        """
        if body.model is not None:
            self.check_model(body.model)
        limits = self._live.now.limits
        if len(body.steps) > limits.depth:
            raise BadRequest(f"steps may be at most {limits.depth}, not {len(body.steps)}", "steps", "above_limit")
        thoughts = self._thoughts_in(body.steps)
        solution = {
            index: step[thought:].lstrip() if thought else step
            for index, (step, thought) in enumerate(zip(body.steps, thoughts, strict=True))
            if thought < len(step)
        }
        if not solution:
            raise BadRequest("steps are thinking alone, which the reward model does not read", "steps")
        texts = {"question": body.question, **{f"steps.{index}": step for index, step in solution.items()}}
        characters, prm = sum(map(len, texts.values())), self._prm
        if prm is not None and characters > prm.max_characters:
            fault = f"the PRM's context is {prm.max_model_len} tokens; a path of {characters} characters has more"
            raise BadRequest(fault, "steps", "context_length_exceeded")
        tokens = sum(len(self._tokens(path, text)) for path, text in texts.items())
        item = ScoreItem(tuple(solution.values()), len(solution), ended=True)
        salt, lane = self._cache_salt(key), _lane(body.service_tier)
        checks = checks_of(body.question) if self._runs_programs else None
        request = ScoreRequest(uuid.uuid4().hex, body.question, (item,), limits.seconds, salt, lane, checks)
        unread = (index for index in range(len(body.steps)) if index not in solution)
        return ScoreJob(request, tokens, thoughts if any(thoughts) else (), tuple(unread))

    def _thoughts_in(self, steps: Sequence[str]) -> tuple[int, ...]:
        """Returns the number of characters of each step that are thinking, which the reward model does not read."""
        if self._encoder.marks is None or self._scores_thinking:
            return (0,) * len(steps)
        left, found = parts("".join(steps)).start, []
        for step in steps:
            found.append(min(left, len(step)))
            left -= found[-1]
        return tuple(found)

    def _too_long(self, tokens: str, context: int) -> BadRequest:
        fault = f"the prompt has {tokens}, which leaves no room to answer"
        return context_exceeded(context, fault, "messages")

    def _cache_salt(self, key: KeyRecord | None) -> str:
        """Returns the key's salt of the prefix cache, so that reply times reveal nothing about other keys' prompts."""
        return key.cache_salt if key is not None and self._isolates_keys else ""

    def _limits(self, key: KeyRecord | None) -> LimitSettings:
        """Returns the caps on a request with this key."""
        limits = self._live.now.limits
        if key is None:
            return limits
        own = {"tokens": key.limits.tokens, "nodes": key.limits.nodes}
        lower = {name: value for name, value in own.items() if value is not None and value < getattr(limits, name)}
        return limits.model_copy(update=lower)

    def _encoded(self, path: str, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            if wrong := [token for token in prompt if not 0 <= token < self._encoder.vocabulary]:
                raise BadRequest(
                    f"{path} has the token id {wrong[0]}, but the model has {self._encoder.vocabulary} tokens", path
                )
            return tuple(prompt)
        try:
            ids = self._tokens(path, prompt, self._context)
        except PromptTooLong as error:
            raise context_exceeded(self._context, f"{path} has {error}", path) from None
        if not ids:
            raise BadRequest(f"{path} has no tokens", path)
        return ids

    def _tokens(self, path: str, text: str, max_tokens: int | None = None) -> tuple[int, ...]:
        try:
            return tuple(self._encoder.encode_text(text, max_tokens=max_tokens))
        except ValueError as error:
            raise BadRequest(f"{path}: {error}", path) from None


def _schema_notes(request: ChatRequest) -> list[str]:
    """Returns the note on keywords of the answer's JSON schema that constrain nothing."""
    unheld = request.answer_schema.unheld
    return [f"keywords of the schema without effect: {listed(unheld, MAX_NAMED)}"] if unheld else []


def _lane(service_tier: str | None) -> Lane:
    return Lane.of(first_steps=False, flex=service_tier == FLEX)
