"""Replies: what a search found and what it cost, in OpenAI's shapes with one extra block."""

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from search.ports import TokenBeamReply
from search.run.report import SearchOutcome, StepScored
from search.tree import StepEnd

Json = dict[str, Any]

MAX_ANSWERS = 64
"""In a reply: the winner and those with most votes. There can be one for every path."""


class Head(NamedTuple):
    """What is known of a reply before its search begins."""

    reply_id: str
    created: int
    """Unix seconds."""
    model: str
    strategy: str
    n: int
    prompt_tokens: int
    temperature: float
    """In force."""
    notes: tuple[str, ...]
    """What of the request was not taken as it stands."""


def now() -> int:
    """Unix seconds."""
    return int(time.time())


def finish_reason(outcome: SearchOutcome) -> str:
    """``stop`` where the answering path says what it had to say, ``length`` where a limit cut it off."""
    last = outcome.selection.node.step
    ended = outcome.stopped or (last is not None and last.end is StepEnd.END_OF_SEQUENCE)
    return "stop" if ended or outcome.selection.answer is not None else "length"


def usage(head: Head, outcome: SearchOutcome) -> Json:
    """Token counts: the prompt once, and every token generated on any branch."""
    cost = outcome.cost
    return {
        "prompt_tokens": head.prompt_tokens,
        "completion_tokens": cost.generated_tokens,
        "total_tokens": head.prompt_tokens + cost.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": min(cost.root_cached_tokens, head.prompt_tokens)},
        "completion_tokens_details": {"reasoning_tokens": cost.generated_tokens - cost.answer_tokens},
    }


def search_block(head: Head, outcome: SearchOutcome) -> Json:
    """What the search did and what it cost: the part of a reply that OpenAI's API has no place for."""
    return {
        "search_id": outcome.search_id,
        "strategy": head.strategy,
        "n": head.n,
        "temperature": head.temperature,
        "notes": list(head.notes),
        "seed": outcome.seed,
        "stop_reason": str(outcome.stop_reason),
        "answer": outcome.selection.answer,
        "score": outcome.selection.score,
        "agreement": outcome.selection.agreement,
        "answers": [
            {
                "answer": group.answer,
                "paths": group.size,
                "share": group.share,
                "weight": group.weight,
                "score": group.score,
            }
            for group in outcome.selection.groups[:MAX_ANSWERS]
        ],
        "degraded": outcome.degraded,
        **outcome.cost.model_dump(),
    }


def completion(head: Head, outcome: SearchOutcome) -> Json:
    """A ``chat.completion``."""
    message = {"role": "assistant", "content": outcome.text, "reasoning_content": None, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(outcome)}
    return {
        "id": head.reply_id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [choice],
        "usage": usage(head, outcome),
        "search": search_block(head, outcome),
    }


class Chunks:
    """The ``chat.completion.chunk`` objects of one streamed reply."""

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._head = head
        self._shared: Json = {
            "id": head.reply_id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        # As OpenAI does: with usage asked for, every chunk but the last says that it has none.
        self._no_usage: Json = {"usage": None} if include_usage else {}

    def role(self) -> Json:
        return self._chunk({"role": "assistant", "content": ""})

    def step(self, event: StepScored) -> Json:
        """Progress: a readable line for people, the event itself for programs."""
        return self._chunk({"reasoning_content": step_line(event)}, search_event=step_event(event))

    def content(self, text: str) -> Json:
        return self._chunk({"content": text})

    def finish(self, outcome: SearchOutcome) -> Json:
        return self._chunk({}, finish_reason(outcome), search=search_block(self._head, outcome))

    def usage(self, outcome: SearchOutcome) -> Json:
        return {**self._shared, "choices": [], "usage": usage(self._head, outcome)}

    def _chunk(self, delta: Json, finish: str | None = None, **extra: Any) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._shared, "choices": [choice], **self._no_usage, **extra}


def step_event(event: StepScored) -> Json:
    return {
        "type": "step_scored",
        "node": list(event.node),
        "text": event.text,
        "reward": event.reward,
        "score": event.score,
        "terminal": event.terminal,
        "tokens": event.tokens,
        "nodes": event.nodes,
    }


def step_line(event: StepScored) -> str:
    """One line: where the step is in the tree, its reward, what it says."""
    node = ".".join(map(str, event.node))
    reward = "" if event.reward is None else f" {event.reward:.2f}"
    return f"[{node}]{reward}{' ■' if event.terminal else ''} {' '.join(event.text.split())}\n"


def models(served_name: str, created: int) -> Json:
    """A ``list`` of the base model, first, and examples of its aliases."""
    names = [served_name, *(f"{served_name}:{alias}" for alias in ("greedy", "sc-16", "best-16", "beam-16"))]
    return {"object": "list", "data": [model(name, created) for name in names]}


def model(name: str, created: int) -> Json:
    return {"id": name, "object": "model", "created": created, "owned_by": "banyan"}


def text_completion(
    reply_id: str, created: int, model_name: str, n: int, prompt_tokens: int, found: TokenBeamReply
) -> Json:
    """A ``text_completion``: ``n`` choices for each prompt, the best first, in the order of the prompts."""
    best = [written for row in found.prompts for written in row[:n]]
    choices = [
        {
            "index": index,
            "text": written.text,
            "logprobs": None,
            "finish_reason": "stop" if written.sequence.ended else "length",
            "cumulative_logprob": written.sequence.logprob,
            "score": written.sequence.score,
        }
        for index, written in enumerate(best)
    ]
    return {
        "id": reply_id,
        "object": "text_completion",
        "created": created,
        "model": model_name,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": found.generated_tokens,
            "total_tokens": prompt_tokens + found.generated_tokens,
        },
    }


def rewards(model_name: str, values: Sequence[float]) -> Json:
    return {"object": "score", "model": model_name, "rewards": list(values)}


def dumps(value: Json) -> str:
    """JSON as it goes over the wire: no NaN, no needless bytes."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
