"""A server of OpenAI's API over a model without an engine: its next token depends on the seed and on all text so far.

What it can do is up to the test. A local generator over the same model says what a search has to get from it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments.backends.pool import Pool
from deployments.backends.settings import BackendSettings
from deployments.backends.texts import split_steps, token_counts
from search.ports import Child, ChildGroup, ExpandRequest, StopCondition, branch_seed
from search.tree import Step, StepEnd
from tests.unit.search.search_fakes import seeded_rng

DELIMITER = "\n\n"
EOS = ""
WORDS = (" so", " then", " we", " add", " two", " and", " carry", " one")
MODEL = "text-model"
CONTEXT = 2048
PROMPT_TOKENS = 7
"""Of every prompt."""


def next_token(seed: int | None, text: str) -> str:
    rng = seeded_rng("token", seed, text)
    kind = rng.random()
    if kind < 0.12:
        return DELIMITER
    if kind < 0.17:
        return f" \\boxed{{{rng.randint(0, 3)}}}"
    if kind < 0.2:
        return EOS
    return rng.choice(WORDS)


@dataclass
class TextModel:
    """The server, and what it was asked."""

    continues: str = "asked"
    """``asked``, ``always`` or empty: whether a final message of the assistant is continued."""
    stops: bool = True
    seeds: bool = True
    logprobs: bool = True
    schemas: bool = True
    tools: bool = True
    thinks: bool = False
    n: bool = True
    usage: bool = True
    sampling: bool = True
    no_top_k: int = 0
    """The only ``top_k`` below 1 that it takes, unless it is greedy: -1 as in SGLang."""
    temperature: bool = True
    most_choices: int = 64
    trims: bool = False
    """Whether it trims messages, as chat templates of Llama 3 do."""
    token_ids: bool = True
    limit_name: str = "max_tokens"
    ends_unheard: bool = True
    """Whether it ends what nobody waits for."""
    counts: bool = False
    """Whether it tells the number of its generated tokens; an answer without end then takes its time."""
    interrupts: bool = False
    """Whether a new stream ends the one before it, as at the server of llama-cpp-python."""
    hangs: bool = False
    """Whether replies hang after their first token."""
    refuses: str = ""
    """Requests whose body contains this are refused."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at_work: int = 0
    aborted: int = 0
    generated: int = 0
    streams: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/v1/models", self._models),
            *([Route("/metrics", self._metrics)] if self.counts else ()),
            Route("/v1/chat/completions", self._reply, methods=["POST"]),
            Route("/v1/completions", self._reply, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "max_model_len": CONTEXT}]})

    async def _reply(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if error := self._error(body):
            return JSONResponse({"error": {"message": error, "code": 400}}, status_code=400)
        whole = [self._choice(body, index) for index in range(body.get("n", 1) if self.n else 1)]
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": sum(len(each["tokens"]) for each in whole)}
        if body.get("stream"):
            return StreamingResponse(self._events(body, whole, usage), media_type="text/event-stream")
        if self.hangs:
            await self._hang(request)
        if body.get("ignore_eos"):
            await self._generate(request, body[self.limit_name])
        chat = "messages" in body
        choices = [
            {
                "index": index,
                "finish_reason": each["finish"],
                **({"message": {"role": "assistant", **each["said"]}} if chat else {"text": each["said"]["content"]}),
                **each["rest"],
            }
            for index, each in enumerate(whole)
        ]
        return JSONResponse({"choices": choices, **({"usage": usage} if self.usage else {})})

    def _error(self, body: Mapping[str, Any]) -> str:
        if self.refuses and self.refuses in json.dumps(body):
            return f"no {self.refuses} here"
        known = {
            *("model", "messages", "stream", "stream_options", self.limit_name),
            *(("temperature", "top_p") if self.temperature else ()),
            *(("prompt", "max_tokens", "return_token_ids") if self.token_ids else ()),
            *(("stop", "include_stop_str_in_output") if self.stops else ("stop",)),
            *(("seed",) if self.seeds else ()),
            *(("logprobs",) if self.logprobs else ()),
            *(("response_format",) if self.schemas else ()),
            *(("tools", "tool_choice") if self.tools else ()),
            *(("n",) if self.n else ()),
            *(("top_k", "min_p") if self.sampling else ()),
            *(("ignore_eos",) if self.counts else ()),
            *(("continue_final_message", "add_generation_prompt") if self.continues == "asked" else ()),
        }
        limit = body.get(self.limit_name, 16)
        if PROMPT_TOKENS + limit > CONTEXT:
            return f"{limit} tokens are more than the context holds behind {PROMPT_TOKENS}"
        if body.get("top_k", 1) < 1 and body.get("temperature", 1) and body["top_k"] != self.no_top_k:
            return f"top_k must be {self.no_top_k} or at least 1"
        if body.get("n", 1) > self.most_choices:
            return f"n must be at most {self.most_choices}"
        unknown = body.keys() - known
        return f"unknown fields: {sorted(unknown)}" if unknown else ""

    def _choice(self, body: Mapping[str, Any], index: int) -> dict[str, Any]:
        limit = body.get(self.limit_name, body.get("max_tokens", 16))
        seed = body.get("seed", len(self.bodies) * 100 + index) if body.get("temperature", 1) else 0
        if body.get("response_format"):
            value = {"word": "banyan-64"}
            said = {"content": json.dumps(value)}
            return {"said": said, "deltas": [said], "tokens": [1] * 4, "finish": "stop", "rest": {}}
        if body.get("tools"):
            call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            said = {"content": None, "tool_calls": [call]}
            return {"said": said, "deltas": [said], "tokens": [1] * 4, "finish": "tool_calls", "rest": {}}
        if "messages" in body:
            *before, last = body["messages"]
            final = last["role"] == "assistant"
            keeps = final and (self.continues == "always" or body.get("continue_final_message"))
            text = last["content"] if keeps else ""
            text = text.rstrip() if self.trims else text
            prompt = json.dumps(before if keeps else body["messages"])
        else:
            prompt, text = "ids:", "".join(map(chr, body["prompt"]))
        thought = f"hm {seed}" if self.thinks and not text else ""
        tokens, finish = self.write(seed, prompt, text, limit, body.get("stop", ()))
        rest: dict[str, Any] = {}
        if body.get("logprobs") is not None:
            content = [{"token": token, "logprob": -float(len(token))} for token in tokens]
            rest = {"logprobs": {"content": content}}
        if body.get("return_token_ids"):
            tokens = list("".join(tokens))
            rest["token_ids"] = [*map(ord, tokens)]
            if rest.get("logprobs"):
                rest["logprobs"] = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}
        said: dict[str, Any] = {"content": "".join(tokens)}
        deltas = [{"content": token} for token in tokens]
        if thought:
            said["reasoning_content"], tokens = thought, ["hm", *tokens]
            deltas = [{"reasoning_content": thought}, *deltas]
        return {"said": said, "deltas": deltas, "tokens": tokens, "finish": finish, "rest": rest}

    @staticmethod
    def write(seed: int | None, prompt: str, text: str, limit: int, stop: Any = ()) -> tuple[list[str], str]:
        """The tokens behind ``text``, and why they end."""
        tokens: list[str] = []
        while len(tokens) < limit:
            token = next_token(seed, prompt + text)
            if token == EOS and tokens:
                return tokens, "stop"
            tokens.append(token or " so")
            text += tokens[-1]
            if any(token.endswith(each) for each in stop):
                return tokens, "stop"
        return tokens, "length"

    async def _events(self, body: Any, whole: Any, usage: Any) -> AsyncIterator[str]:
        self.streams += 1
        number = self.streams
        for index, each in enumerate(whole):
            for delta in each["deltas"]:
                yield self._event({"choices": [{"index": index, "delta": delta, "finish_reason": None}]})
                if self.interrupts:
                    await asyncio.sleep(0.005)
                    if self.streams > number:
                        raise ConnectionAbortedError
                if self.hangs:
                    await self._hang_forever()
            yield self._event(
                {"choices": [{"index": index, "delta": {}, "finish_reason": each["finish"], **each["rest"]}]}
            )
        if self.usage:
            yield self._event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"

    async def _hang_forever(self) -> None:
        """Counts the request as at work while it hangs only: a stream that is cancelled while it sends ends late."""
        self.at_work += 1
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.at_work -= 1
            self.aborted += 1

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(f'# TYPE\nvllm:generation_tokens_total{{engine="0"}} {self.generated}.0\n')

    async def _generate(self, request: Request, tokens: int) -> None:
        for _ in range(tokens):
            self.generated += 1
            await asyncio.sleep(0.01)
            if self.ends_unheard and await request.is_disconnected():
                return

    async def _hang(self, request: Request) -> None:
        self.at_work += 1
        self.began.set()
        try:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
        finally:
            self.at_work -= 1
            self.aborted += 1

    @staticmethod
    def _event(given: Any) -> str:
        return f"data: {json.dumps(given)}\n\n"

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Pool]:
        """The server at a port of its own, and the client of it."""
        server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        pool = Pool(BackendSettings(url=f"http://127.0.0.1:{port}", attempts=1, connect_s=30))
        try:
            yield pool
        finally:
            await pool.aclose()
            server.should_exit = server.force_exit = True
            await serving


class LocalModel:
    """`search.ports.Generator` over the same model, in this process."""

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        whole = request.stop_condition is StopCondition.SOLUTION
        greedy = request.sampling.temperature == 0
        for item in request.expansions:
            for branch in item.branches:
                seed, tokens, text = branch.seed, [], ""
                while True:
                    more, finish = TextModel.write(
                        0 if greedy else seed,
                        item.messages,
                        item.text + text,
                        branch.max_tokens - len(tokens),
                        () if whole else (DELIMITER,),
                    )
                    tokens += more
                    text = "".join(tokens)
                    if whole or finish == "length" or not text.endswith(DELIMITER) or text.strip():
                        break
                    if len(tokens) == branch.max_tokens:
                        finish = "length"
                        break
                    seed = branch_seed(branch.seed, (), len(text))
                yield ChildGroup((Child(item.parent, branch.index, _steps(tokens, finish, whole), 0),))


def _steps(tokens: list[str], finish: str, whole: bool) -> tuple[Step, ...]:
    text = "".join(tokens)
    end = StepEnd.LENGTH if finish == "length" else StepEnd.END_OF_SEQUENCE
    if not whole:
        end = StepEnd.DELIMITER if finish == "stop" and text.endswith(DELIMITER) else end
        return (Step((), text, end, counted=len(tokens)),)
    parts = split_steps(text, DELIMITER)
    counts = token_counts(tokens, parts)
    steps = [Step((), part, StepEnd.DELIMITER, counted=count) for part, count in zip(parts, counts, strict=True)]
    return (*steps[:-1], steps[-1]._replace(end=end))
