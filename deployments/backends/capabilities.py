"""What a backend can do, found by a few small requests: servers of the same API differ, and none says how."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from deployments.backends.errors import BackendError, Fault
from deployments.backends.models import ServedModel, find_model
from search.ports import StopCondition, branch_seed
from search.settings import SearchSettings

PROBE_S = 60.0
"""Deadline of one probe, seconds. A model may be loaded by the first one."""
TOKENS = 24
"""Most tokens of a probe's reply."""
ASKED = "Write ten different words, one after another."
SEEDS = tuple(branch_seed(64, (), index) for index in range(4))
"""As large as those of searches: a server may take small ones only."""
WORD = "banyan-64"
"""What a schema forces, and no model would write unasked."""
DELIMITER = "\n\n"
"""Of steps, as most configurations have it."""
LONG = 2048
"""Tokens of an answer that is not waited for."""
GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
LOOK_S = 0.02
SETTLE_S = 0.5
"""Time for which a server generates nothing once it has ended a request whose connection is closed, seconds."""
SETTLED_S = 5.0
"""Time within which it ends such a request, seconds."""
SHOWN = 60
"""Characters of a reply that a finding repeats; twice as many of an error."""

Json = dict[str, Any]


class Continuing(StrEnum):
    """How a backend continues a final message of the assistant."""

    NO = ""
    """It does not: it begins another turn."""
    ASKED = "asked"
    """With ``continue_final_message`` (vLLM, SGLang)."""
    ALWAYS = "always"
    """Whenever the last message is the assistant's (llama.cpp, Anthropic)."""
    TOKEN_IDS = "token_ids"
    """By the token ids of a path, which the search has where it has the model's tokenizer."""


class Finding(NamedTuple):
    """One thing that a backend can do, or cannot."""

    name: str
    holds: bool | None
    """None: it could not be seen."""
    sent: str
    received: str


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do. The defaults are the least that OpenAI's API promises."""

    model: str
    """The backend's name of the model."""
    context_tokens: int | None = None
    """Its context length; None: the backend does not tell."""
    continues: Continuing = Continuing.NO
    token_ids: bool = False
    """Whether it accepts prompts as token ids, and returns the token ids that it generates."""
    stops: bool = False
    """Whether a text that ends at a stop text includes it, so that this is told from the end of the sequence."""
    seeds: bool = False
    """Whether the same seed writes the same text, and another seed another one."""
    logprobs: bool = False
    schemas: bool = False
    tools: bool = False
    thinks: bool = False
    """Whether the model thinks, and its thinking is apart from its text."""
    n: bool = False
    """Whether a request may have several choices."""
    usage: bool = False
    sampling: bool = False
    """Whether it takes ``top_k`` and ``min_p``."""
    no_top_k: int = 0
    """The ``top_k`` with which it samples among all tokens: 0, or -1 (SGLang)."""
    temperature: bool = True
    """Whether it takes a temperature. OpenAI's models that think have one of their own."""
    trims: bool = False
    """Whether its chat template trims a message that it continues, so that a step cannot begin behind a delimiter."""
    cancels: bool = False
    """Whether it was seen to end a request, not streamed, whose connection is closed."""
    concurrent: bool = True
    """Whether it answers several requests at a time; False: a new one ends the one before it."""
    limit_name: str = "max_tokens"
    """The field that limits the tokens of a reply."""
    findings: tuple[Finding, ...] = field(default=(), compare=False, repr=False)

    def with_tokenizer(self) -> "Capabilities":
        """What it can do where prompts are token ids.

        Raises:
            ValueError: it takes none, or the model thinks: `/v1/completions` does not tell thinking apart.
        """
        if not self.token_ids or self.thinks:
            why = "its model thinks" if self.thinks else "it takes and returns no token ids"
            raise ValueError(f"of no use to the backend of {self.model!r}: {why}")
        return replace(self, continues=Continuing.TOKEN_IDS)

    def lacks(self, settings: SearchSettings) -> str | None:
        """Why the backend cannot run this search; None if it can. The reason begins with a setting's name."""
        strategy = settings.strategy
        if strategy.stop_condition is StopCondition.STEP and not self.continues:
            why = "it does not continue a final message of the assistant"
            if self.thinks:
                why = "its model thinks first"
            elif self.trims:
                why = "its chat template trims the message that it would continue"
                why += ", which generator.tokenizer avoids" if self.token_ids else ""
            return (
                f"strategy: {strategy.name} writes step by step, and the backend of {self.model!r} cannot: {why}; "
                "strategies that write whole solutions, such as self_consistency, need no more"
            )
        if (settings.logprobs or strategy.needs_logprobs) and not self.logprobs:
            name = "logprobs" if settings.logprobs else "strategy"
            return f"{name}: the backend of {self.model!r} reports no log-probabilities"
        if settings.seed is not None and not self.seeds:
            return f"seed: the backend of {self.model!r} takes no seeds, so the same tree would not grow again"
        if (strategy.top_k or strategy.min_p) and not self.sampling:
            return f"{'top_k' if strategy.top_k else 'min_p'}: the backend of {self.model!r} does not take it"
        return None


class Calls(Protocol):
    """The calls that probing makes; see `deployments.backends.pool.Pool`."""

    async def get(self, path: str, *, deadline: float) -> Json: ...

    async def post(self, path: str, json: Mapping[str, Any], *, deadline: float) -> Json: ...

    def stream(self, path: str, json: Mapping[str, Any], *, deadline: float) -> AsyncGenerator[Json, None]: ...


async def find_capabilities(calls: Calls, model: str | None = None) -> Capabilities:
    """Asks a backend what it can do.

    Args:
        model: the backend's name of the model; None: the only one that it has.

    Raises:
        BackendError: it cannot be reached, wants another key, or cannot answer an ordinary question.
        ValueError: it has no such model, or several and none is named.
    """
    return await _Probes(calls).run(model)


class _Probes:
    """The probes of one backend, one after another: some are about what another request would change."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._found: list[Finding] = []
        self._base: Json = {}
        self._limit = "max_tokens"

    async def run(self, model: str | None) -> Capabilities:
        name, context = await self._model(model)
        self._base = {"model": name, "messages": [{"role": "user", "content": ASKED}]}
        plain = await self._plain()
        said, thinking = _said(plain)
        usage = isinstance((plain.get("usage") or {}).get("completion_tokens"), int)
        self._note("usage", usage, "a question", json.dumps(plain.get("usage"))[:SHOWN])
        self._note("thinking apart", bool(thinking), "a question", f"reasoning {thinking[:SHOWN]!r}")
        can = Capabilities(name, context, thinks=bool(thinking), usage=usage, limit_name=self._limit)
        can = replace(can, temperature="temperature" in self._base)
        sampling: Json = {"temperature": 1.0} if can.temperature else {}
        for no_top_k in (0, -1):
            # Not greedy: SGLang does not look at top_k then.
            every = {**sampling, "top_k": no_top_k, "min_p": 0.0}
            if await self._takes("top_k and min_p", every, _is_text):
                can, sampling = replace(can, sampling=True, no_top_k=no_top_k), every
                break
        can = replace(
            can,
            seeds=await self._seeds(sampling),
            n=await self._takes("n", {**sampling, "n": 2}, lambda reply: len(reply["choices"]) == 2),
            logprobs=await self._takes("log-probabilities", {"logprobs": True}, _has_logprobs),
            schemas=await self._schemas(),
            tools=await self._tools(),
        )
        if can.thinks:
            self._note("continues a final message", False, "nothing", "its answers begin with thinking")
        else:
            continues, trims = await self._continues(said)
            can = replace(can, continues=continues, trims=trims, stops=await self._stops(said))
        can = replace(can, token_ids=await self._token_ids(name), cancels=await self._cancels(context))
        can = replace(can, concurrent=await self._concurrent())
        return replace(can, findings=tuple(self._found))

    async def _model(self, wanted: str | None) -> ServedModel:
        model = await find_model(self._calls, wanted, _deadline())
        self._note("model", True, "GET /v1/models", f"{model.name}, context {model.context_tokens or 'unknown'}")
        return model

    async def _plain(self) -> Json:
        """The reply to an ordinary question. OpenAI's models that think have another name for the limit, and some of
        them a temperature of their own."""
        refused: BackendError | None = None
        for temperature in ({"temperature": 0.0}, {}):
            for self._limit in ("max_tokens", "max_completion_tokens"):
                try:
                    reply = await self._ask(temperature)
                except BackendError as error:
                    if error.fault is not Fault.REFUSED:
                        raise
                    refused = error
                else:
                    self._base |= temperature
                    return reply
        assert refused is not None
        raise refused

    async def _seeds(self, sampling: Json) -> bool:
        texts = [await self._text({**sampling, "seed": seed}) for seed in (SEEDS[0], *SEEDS)]
        same, others = texts[0] == texts[1], len(set(texts[1:])) > 1
        holds = all(text is not None for text in texts) and same and others
        shown = (
            f"the same seed {'the same' if same else 'other'} text, other seeds {'others' if others else 'the same'}"
        )
        self._note("seeds", holds, "seed, one twice and three others", shown)
        return holds

    async def _schemas(self) -> bool:
        schema: Json = {"type": "object", "properties": {"word": {"enum": [WORD]}}, "required": ["word"]}
        schema["additionalProperties"] = False
        given = {"name": "answer", "strict": True, "schema": schema}
        extra = {"response_format": {"type": "json_schema", "json_schema": given}, self._limit: 4 * TOKENS}
        return await self._takes("JSON schemas", extra, _is_held)

    async def _tools(self) -> bool:
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        function = {"name": "weather", "description": "Weather of a city", "parameters": parameters}
        chosen = {"type": "function", "function": {"name": "weather"}}
        extra = {"tools": [{"type": "function", "function": function}], "tool_choice": chosen, self._limit: 4 * TOKENS}
        return await self._takes(
            "tools",
            extra,
            lambda reply: reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather",
        )

    async def _continues(self, said: str) -> tuple[Continuing, bool]:
        """How the backend continues the first half of its own greedy answer by the other half; and whether it would,
        did it not trim what it continues."""
        half = _half(said)
        if half is None:
            self._note("continues a final message", None, "nothing", f"its answer is too short: {said[:SHOWN]!r}")
            return Continuing.NO, False
        turn = [*self._base["messages"], {"role": "assistant", "content": half}]
        flags = {"continue_final_message": True, "add_generation_prompt": False}
        rest = ""

        def continued(reply: Json) -> bool:
            nonlocal rest
            rest = _said(reply)[0]
            return _agree(half + rest, said, beyond=half)

        for way, fields in ((Continuing.ASKED, flags), (Continuing.ALWAYS, {})):
            how = "asked" if fields else "unasked"
            if await self._takes(f"continues a final message, {how}", {"messages": turn, **fields}, continued):
                trims = await self._trims(half, rest, fields)
                return (Continuing.NO if trims else way), trims
        return Continuing.NO, False

    async def _trims(self, half: str, rest: str, fields: Json) -> bool:
        """Whether ``half`` with a step delimiter behind it is continued by ``rest``, as without, or refused. Chat
        templates may trim messages, as those of Llama 3 and Gemma do: the model would write the delimiter again and
        again."""
        turn = [*self._base["messages"], {"role": "assistant", "content": half + DELIMITER}]
        trims = await self._text({"messages": turn, **fields}) in (None, rest)
        shown = "the same as without, or a refusal" if trims else "another text than without"
        self._note("keeps a delimiter at the end of it", not trims, "half an answer with a delimiter", shown)
        return trims

    async def _stops(self, said: str) -> bool:
        words = said.split()
        if len(words) < 2:
            self._note("includes a stop text", None, "nothing", f"its answer is too short: {said[:SHOWN]!r}")
            return False
        stop = words[len(words) // 2]
        extra = {"stop": [stop], "include_stop_str_in_output": True}
        return await self._takes("includes a stop text", extra, lambda reply: _said(reply)[0].endswith(stop))

    async def _token_ids(self, model: str) -> bool:
        body = {"model": model, "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0.0, "return_token_ids": True}
        holds, shown = False, ""
        try:
            reply = await self._calls.post("/v1/completions", body, deadline=_deadline())
            ids = reply["choices"][0]["token_ids"]
            holds, shown = len(ids) == reply["usage"]["completion_tokens"], f"token_ids {ids}"
        except BackendError as error:
            shown = error.message[: 2 * SHOWN]
        except (KeyError, TypeError, IndexError):
            shown = "a text alone"
        self._note("token ids", holds, "/v1/completions with token ids, return_token_ids", shown)
        return holds

    async def _cancels(self, context: int | None) -> bool:
        """Whether the server generates no more once the connection of a request is closed, by its own figures."""
        name, sent = "ends what nobody waits for", "a long answer, its connection closed; GET /metrics"
        longest = min(LONG, context or LONG) * 3 // 4
        try:
            before = await self._generated()
        except BackendError:
            before = None
        if before is None:
            self._note(name, None, sent, "no count of generated tokens")
            return False
        long = {"temperature": 1.0, "ignore_eos": True, self._limit: longest}
        asking = asyncio.create_task(self._ask(long))
        try:
            while not asking.done() and await self._generated() == before:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(LOOK_S)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        soon, later = None, await self._generated()
        ends_at = time.monotonic() + SETTLED_S
        while soon != later and time.monotonic() < ends_at:  # a busy server notices late that a connection is closed
            await asyncio.sleep(SETTLE_S)
            soon, later = later, await self._generated()
        holds = asking.cancelled() and soon == later and (later or 0) - before < longest
        self._note(name, holds, sent, f"{(later or 0) - before:g} tokens of {longest} were generated")
        return holds

    async def _concurrent(self) -> bool:
        """Whether the stream of one request goes on while another one begins. The server of llama-cpp-python ends it
        (``interrupt_requests``)."""
        name, sent = "answers several requests at a time", "a request, and another one when its stream has begun"
        holds, shown = await self._both_answered()
        if holds is False:  # a network that fails once must not make all searches slow
            holds, shown = await self._both_answered()
        self._note(name, holds, sent, shown)
        return holds is not False

    async def _both_answered(self) -> tuple[bool | None, str]:
        first, second = self._stream(), self._stream()
        try:
            async with aclosing(first), aclosing(second):
                last: Json = await anext(first, {})
                await anext(second, {})
                async for event in first:
                    last = event if event.get("choices") else last
            ended = bool(last["choices"][0].get("finish_reason"))
            return ended, "both answers" if ended else "the end of the first one"
        except BackendError as error:
            return None if error.fault is not Fault.CUT else False, error.message[: 2 * SHOWN]
        except (AttributeError, KeyError, TypeError, IndexError):
            return None, "no stream of OpenAI's API"

    def _stream(self) -> AsyncGenerator[Json, None]:
        body = {**self._base, self._limit: 4 * TOKENS, "stream": True}
        return self._calls.stream("/v1/chat/completions", body, deadline=_deadline())

    async def _generated(self) -> float | None:
        """Tokens that the server has generated since its start; None if it does not tell."""
        text = (await self._calls.get("/metrics", deadline=_deadline())).get("text", "")
        counts = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(GENERATED)]
        return sum(map(float, counts)) if counts else None

    async def _takes(self, name: str, extra: Json, holds: Callable[[Json], bool]) -> bool:
        """Whether a request with ``extra`` fields gets a reply for which ``holds``."""
        taken, shown = False, ""
        try:
            reply = await self._ask(extra)
            shown = repr(_said(reply)[0][:SHOWN])
            taken = holds(reply)
        except BackendError as error:
            if error.fault is not Fault.REFUSED and error.fault is not Fault.FAILED:
                raise
            shown = error.message[: 2 * SHOWN]
        except (AttributeError, KeyError, TypeError, IndexError, ValueError):
            shown = f"another reply than asked for: {shown}"
        sent = json.dumps({key: value for key, value in extra.items() if key not in ("messages", self._limit)})
        self._note(name, taken, sent[:SHOWN] + ("…" if len(sent) > SHOWN else ""), shown)
        return taken

    async def _text(self, extra: Json) -> str | None:
        try:
            return "".join(_said(await self._ask(extra)))
        except BackendError as error:
            if error.fault is not Fault.REFUSED and error.fault is not Fault.FAILED:
                raise
            return None

    async def _ask(self, extra: Json) -> Json:
        body = {**self._base, self._limit: TOKENS, **extra}
        return await self._calls.post("/v1/chat/completions", body, deadline=_deadline())

    def _note(self, name: str, holds: bool | None, sent: str, received: str) -> None:
        self._found.append(Finding(name, holds, sent, received))


def _deadline() -> float:
    return asyncio.get_running_loop().time() + PROBE_S


def _said(reply: Json) -> tuple[str, str]:
    """The text and the thinking of the first choice; empty where there is none."""
    try:
        message = reply["choices"][0]["message"]
        return message.get("content") or "", message.get("reasoning_content") or message.get("reasoning") or ""
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise BackendError(Fault.INVALID, "", "its reply has not the shape of OpenAI's API") from error


def _is_text(reply: Json) -> bool:
    return any(_said(reply))


def _is_held(reply: Json) -> bool:
    """Whether the reply is what the schema allows, as far as it goes: small models may write spaces up to the limit."""
    text = "".join(_said(reply)[0].split())
    return bool(text) and json.dumps({"word": WORD}, separators=(",", ":")).startswith(text)


def _has_logprobs(reply: Json) -> bool:
    return all(isinstance(each["logprob"], float) for each in reply["choices"][0]["logprobs"]["content"])


def _half(text: str) -> str | None:
    """About half of a text, up to before a word's space; None if there is no such place."""
    middle = text.find(" ", len(text) // 2)
    return text[:middle] if middle > 0 and text[middle:].strip() else None


def _agree(text: str, expected: str, beyond: str) -> bool:
    """Whether two texts are the same as far as both go, which is further than ``beyond``; spaces do not count."""
    one, other, start = ("".join(each.split()) for each in (text, expected, beyond))
    size = min(len(one), len(other))
    return size > len(start) and one[:size] == other[:size]
