"""A stand-in for the HTTP endpoint: real HTTP on loopback, the real contract, invented content."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cluster.launch.application import url_of

STEPS = (((0,), "1 + 1 = 2\n\n", 0.95, False), ((1,), "1 + 1 = 3\n\n", 0.12, False), ((0, 0), r"\boxed{2}", 0.97, True))


def tree_of(*solutions: str | None, logprobs: tuple[float, ...] = ()) -> dict[str, Any]:
    """A tree as the endpoint sends it: a first step of 4 tokens, and below it solutions of one step of 6 tokens.
    ``answers``: those of the solutions; None for a solution without an answer."""
    nodes = [_node([0], "1 + 1 = 2\n\n", "open", 4, -1.0)]
    for index, answer in enumerate(solutions):
        text = "I do not know" if answer is None else f"\\boxed{{{answer}}}"
        nodes.append(_node([0, index], text, "terminal", 6, logprobs[index] if logprobs else -2.0))
    return {"version": 2, "nodes": nodes}


def _node(place: list[int], text: str, status: str, tokens: int, logprob: float) -> dict[str, Any]:
    own = {"text": text, "reward": 0.5, "status": status, "tokens": tokens, "end": "delimiter", "logprob": logprob}
    return {"id": place, **own}


TREE = tree_of("2")


@dataclass
class Endpoint:
    """Replies of the stand-in, and a record of the requests."""

    url: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    """Answer by question; 2 for any other question."""
    texts: dict[str, str] = field(default_factory=dict)
    """Text of a whole reply by question."""
    others: dict[str, list[str]] = field(default_factory=dict)
    """Answers that lost the vote, by question."""
    trees: dict[str, Any] = field(default_factory=dict)
    """Tree by question; `TREE` for any other question."""
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers of the first replies, in order."""
    broken_questions: set[str] = field(default_factory=set)
    cut_streams: int = 0
    """Number of streams that end after their steps."""
    broken_streams: int = 0
    """Number of streams that end after their steps with an error."""
    dropped_replies: int = 0
    """Number of connections that are closed in the middle of a plain reply."""
    places: int | None = None
    """Maximum number of concurrent requests; any more are told to retry at once."""
    takes_s: float = 0.0
    """Seconds spent on each request."""
    at_work: int = 0
    most_at_work: int = 0
    refused: int = 0
    answers_left: int | None = None
    """Number of requests that are answered before the endpoint hangs."""
    hang: bool = False
    only_pings: bool = False
    """Streams send pings and nothing else."""
    api_key: str | None = None
    owner: str = "banyan"
    """Of the model, as the endpoint tells it."""
    block: dict[str, Any] = field(default_factory=dict)
    """Fields of every search block, instead of those invented."""
    requests: list[dict[str, Any]] = field(default_factory=list)

    def search_block(self, body: dict[str, Any]) -> dict[str, Any]:
        search = body.get("search") or {"strategy": "beam_search"}
        question = body["messages"][0]["content"]
        answer = self.answers.get(question, "2")
        groups = [answer, *self.others.get(question, [])]
        return {
            "strategy": search["strategy"],
            "n": search.get("n"),
            "nodes": 3,
            "prm_calls": 2,
            "expand_calls": 2,
            "generated_tokens": 30,
            "cached_tokens": 12,
            "a_figure_of_tomorrow": 40,
            "stop_reason": "finished",
            "agreement": 1.0,
            "score": 0.97,
            "answer": answer,
            "answers": [{"answer": each, "paths": 2, "weight": 1.5, "score": 0.97} for each in groups],
            "degraded": False,
            "seconds": 0.01,
            "seed": body.get("seed", 7),
            **({"kv_tokens_peak": 4096, "kv_tokens_sum": 9000} if search.get("kv_usage") else {}),
            **self.block,
        }

    async def models(self, request: Request) -> Response:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return _error(401, "wrong API key")
        model = {"id": "stand-in", "object": "model", "owned_by": self.owner}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def score(self, request: Request) -> Response:
        """Steps that say that they are wrong get 0.1, all others 0.9."""
        body = await request.json()
        self.requests.append(body)
        if body["question"] in self.broken_questions:
            return _error(503, "the reward model failed")
        rewards = [0.1 if "wrong" in step else 0.9 for step in body["steps"]]
        return JSONResponse({"object": "score", "rewards": rewards, "usage": USAGE})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.answers_left is not None:
            self.answers_left -= 1
        if self.hang or (self.answers_left is not None and self.answers_left < 0):
            await asyncio.sleep(30)
        if self.places is not None and self.at_work >= self.places:
            self.refused += 1
            return _error(429, "full", {"Retry-After": "0"})
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await asyncio.sleep(self.takes_s)
            return self.reply_to(request.url.path, body)
        finally:
            self.at_work -= 1

    def reply_to(self, path: str, body: dict[str, Any]) -> Response:
        if self.refusals:
            status, headers = self.refusals.pop(0)
            return _error(status, "not now", headers)
        if body["messages"][0]["content"] in self.broken_questions:
            return _error(500, "the generator failed")
        if body.get("stream"):
            return StreamingResponse(self.chunks(body), media_type="text/event-stream")
        text = self.texts.get(body["messages"][0]["content"], "1 + 1 = 2\n\n\\boxed{2}")
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"choices": [choice], "usage": USAGE, "search": self.search_block(body)}
        if path == "/v1/search":
            if (body.get("search") or {}).get("logprobs"):
                reply["prompt_token_ids"] = [1, 2, 3]
            reply["tree"] = self.trees.get(body["messages"][0]["content"], TREE)
        if self.dropped_replies:
            self.dropped_replies -= 1
            return StreamingResponse(truncated(reply), headers={"Content-Length": "100000"})
        return JSONResponse(reply)

    async def chunks(self, body: dict[str, Any]) -> AsyncIterator[str]:
        while self.only_pings:
            yield ": ping\n\n"
            await asyncio.sleep(0.05)
        for number, (node, text, reward, terminal) in enumerate(STEPS, start=1):
            event = {"type": "step_scored", "node": node, "text": text, "reward": reward, "score": reward}
            event |= {"terminal": terminal, "tokens": 10 * number, "nodes": number}
            delta = {"reasoning_content": f"step {number}"}
            yield _chunk({"choices": [{"index": 0, "delta": delta}], "search_event": event})
        if self.cut_streams:
            self.cut_streams -= 1
            return
        if self.broken_streams:
            self.broken_streams -= 1
            error = {"message": "no replica", "type": "server_error", "param": None, "code": "generator_unavailable"}
            yield f"data: {json.dumps({'error': error})}\n\n"
            return
        for piece in ("1 + 1 = 2\n\n", "\\boxed{2} \u2028"):
            yield _chunk({"choices": [{"index": 0, "delta": {"content": piece}}]})
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        yield _chunk({"choices": [last], "search": self.search_block(body)})
        yield _chunk({"choices": [], "usage": USAGE})
        yield "data: [DONE]\n\n"


async def truncated(reply: dict[str, Any]) -> AsyncIterator[str]:
    """A reply that breaks off: it is shorter than its announced length."""
    yield json.dumps(reply)[:20]


USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 30,
    "total_tokens": 50,
    "completion_tokens_details": {"reasoning_tokens": 25},
    "prompt_tokens_details": {"cached_tokens": 12},
}


def _chunk(content: dict[str, Any]) -> str:
    return f"data: {json.dumps({'object': 'chat.completion.chunk', **content}, ensure_ascii=False)}\n\n"


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    error = {"message": message, "type": "server_error", "param": None, "code": "some_code"}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[Endpoint]:
    """A fresh stand-in on a port of its own."""
    stand_in = Endpoint()
    routes = [
        Route("/v1/models", stand_in.models),
        Route("/health", stand_in.health),
        Route("/v1/chat/completions", stand_in.completions, methods=["POST"]),
        Route("/v1/score", stand_in.score, methods=["POST"]),
        Route("/v1/search", stand_in.completions, methods=["POST"]),
    ]
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    config = uvicorn.Config(
        Starlette(routes=routes), host, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
    )
    server = Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(10)
    stand_in.url = url_of(host, server.servers[0].sockets[0].getsockname()[1])
    yield stand_in
    server.should_exit = True
    thread.join(10)
