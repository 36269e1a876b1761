"""Replies in OpenAI's shapes, with one extra block for what a search found and what it cost."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from starlette.responses import Response

from deployments.admission.errors import ApiError
from deployments.http.choices import Choice, ChoiceOptions, TokenLogprob, choices, thinking_tokens
from deployments.http.progress import HEADING, step_line
from deployments.service.answer_cache import CachedOutcome
from deployments.service.searches import ScoreOutcome
from search.answers.voting import best_groups, decisive_shares
from search.ports import TokenBeamReply
from search.run.report import ContextStarted, QuietEvent, SearchCost, SearchOutcome, StepScored
from search.snapshot import hook_as_json, logprob_as_json, thinking_as_json

Json = dict[str, Any]
DONE: Literal["[DONE]"] = "[DONE]"
Data = Json | Literal["[DONE]"]
"""The data of a server-sent event."""

MAX_ANSWERS = 64
"""Maximum number of answers in a reply: the first ones by rank. Every path may have a different answer."""

MAX_READER_CHARS = 4096
"""Length at which a reply cuts what a reader of solutions wrote. The tree has all of it."""

MAX_ASKED_CHARS = 200
"""Length at which a note cuts the question of an earlier request."""

ARGUMENTS_AT_ONCE = 256
"""Maximum characters of a call's arguments in one event."""

THINKING_AT_ONCE = 4096
"""Maximum characters of thinking in one event."""

PRUNED_AT_ONCE = 64
"""Maximum number of nodes that one event reports as pruned."""


class Head(NamedTuple):
    """The part of a reply that is known before its search begins."""

    reply_id: str
    created: int
    """Unix seconds."""
    model: str
    strategy: str
    n: int
    prompt_tokens: int
    temperature: float
    """The temperature in force."""
    notes: tuple[str, ...]
    """How the search differs from the request."""
    wanted: ChoiceOptions
    service_tier: str
    """The tier in force."""


def now() -> int:
    """Unix seconds."""
    return int(time.time())


def usage(head: Head, outcome: SearchOutcome) -> Json:
    """Token counts; zero for an answer from the cache. Prompt tokens: the prompt, the prompts of contexts and the texts
    that were added to paths, each once. Completion tokens: all that were generated on any branch. Those outside the
    content of the answering path count as reasoning."""
    cost = outcome.cost
    if isinstance(outcome, CachedOutcome):
        head, cost = head._replace(prompt_tokens=0), SearchCost()
    elif cost.prompt_tokens:  # by a server that encodes the prompt itself, more exactly than it was known before
        head = head._replace(prompt_tokens=cost.prompt_tokens)
    read = head.prompt_tokens + cost.context_prompt_tokens + cost.hook_tokens + cost.tool_tokens
    content_tokens = cost.answer_tokens and cost.answer_tokens - thinking_tokens(outcome, head.wanted.spell)
    return {
        "prompt_tokens": read,
        "completion_tokens": cost.generated_tokens,
        "total_tokens": read + cost.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": min(cost.root_cached_tokens, head.prompt_tokens)},
        "completion_tokens_details": {"reasoning_tokens": cost.generated_tokens - content_tokens},
    }


def search_block(head: Head, outcome: SearchOutcome) -> Json:
    """Returns what the search found and what it cost: the block of a reply that OpenAI's API does not have."""
    return {
        "search_id": outcome.search_id,
        "strategy": head.strategy,
        "n": head.n,
        "temperature": head.temperature,
        "notes": [
            *head.notes,
            *_choices_notes(head, outcome),
            *_unread_notes(outcome),
            *_text_notes(outcome),
            *_context_notes(outcome),
            *_reader_notes(outcome),
            *_hook_notes(outcome),
            *_tool_notes(outcome),
            *_cached_notes(outcome),
        ],
        "seed": outcome.seed,
        "stop_reason": str(outcome.stop_reason),
        "answer": outcome.selection.answer,
        "score": outcome.selection.score,
        "node": outcome.selection.node.id,
        "agreement": outcome.selection.agreement,
        "selection": str(head.wanted.selection),
        "answers": _answers(head, outcome),
        **_readers(outcome),
        "degraded": outcome.degraded,
        "cached": isinstance(outcome, CachedOutcome),
        **outcome.cost.model_dump(),
    }


def _answers(head: Head, outcome: SearchOutcome) -> list[Json]:
    """Returns the answers in the vote, by falling rank under the rule that chose the first."""
    rule = head.wanted.selection
    groups = best_groups(outcome.selection.groups, rule)
    return [
        {
            "answer": group.answer,
            "vote": vote,
            "paths": group.size,
            "share": group.share,
            "weight": group.weight,
            "score": group.score,
            "node": group.best.id,
        }
        for group, vote in list(zip(groups, decisive_shares(groups, rule), strict=True))[:MAX_ANSWERS]
    ]


def _readers(outcome: SearchOutcome) -> Json:
    """Returns what each reader wrote, and the node of the solution that it chose."""
    votes = outcome.reader_votes[:MAX_ANSWERS]
    read = [{"node": vote.reader, "chosen": vote.chosen, "text": vote.text[:MAX_READER_CHARS]} for vote in votes]
    return {"readers": read} if read else {}


def _reader_notes(outcome: SearchOutcome) -> list[str]:
    """Returns a note if readers named none of the solutions that they were shown."""
    abstained = sum(vote.chosen is None for vote in outcome.reader_votes)
    shown = f"{abstained} of {len(outcome.reader_votes)}"
    return [f"readers that named no solution they were shown: {shown}"] if abstained else []


def _choices_notes(head: Head, outcome: SearchOutcome) -> list[str]:
    found = max(1, len(outcome.selection.groups))
    return [f"{found} distinct answers were found, not n = {head.wanted.count}"] if found < head.wanted.count else []


def _unread_notes(outcome: SearchOutcome) -> list[str]:
    unread = outcome.selection.unread
    return [f"answers that took too long to read and were compared as text: {unread}"] if unread else []


def _text_notes(outcome: SearchOutcome) -> list[str]:
    """Returns a note if no path had an answer, so that whole texts were compared."""
    groups = outcome.selection.text_groups
    return (
        [f"no answer could be extracted, so whole texts were compared; meanings among them: {groups}"] if groups else []
    )


def _context_notes(outcome: SearchOutcome) -> list[str]:
    """Returns a note on solutions that were not read because the context length had no room for them."""
    unread = outcome.cost.unread_sources
    return (
        [f"solutions that did not fit into the prompts that show them, and were not read: {unread}"] if unread else []
    )


def _hook_notes(outcome: SearchOutcome) -> list[str]:
    """Returns notes on steps that the step hook has not seen."""
    notes = []
    if unhooked := outcome.cost.unhooked_steps:
        notes.append(f"steps of whole solutions, for which the step hook is not called: {unhooked}")
    if failures := outcome.tree.hook_failures:
        notes.append(f"steps for which the step hook failed: {failures}")
    return notes


def _tool_notes(outcome: SearchOutcome) -> list[str]:
    """Returns a note on programs that met their time limit."""
    met = outcome.cost.tool_limits
    return [f"programs that met their time limit: {met}"] if met else []


def _cached_notes(outcome: SearchOutcome) -> list[str]:
    """Returns a note if another question was asked than the one that was answered."""
    if not isinstance(outcome, CachedOutcome) or outcome.similarity is None:
        return []
    asked = outcome.asked if len(outcome.asked) <= MAX_ASKED_CHARS else f"{outcome.asked[:MAX_ASKED_CHARS]}…"
    return [f"answered as an earlier question that means the same (similarity {outcome.similarity:.3f}): {asked}"]


def completion(head: Head, outcome: SearchOutcome) -> Json:
    """A ``chat.completion``."""
    return {
        "id": head.reply_id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "service_tier": head.service_tier,
        "choices": [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": choice.content,
                    **_reasoning(choice.thinking),
                    "refusal": None,
                    **({"tool_calls": [call_of(*call) for call in choice.calls]} if choice.calls else {}),
                },
                **_answer_and_score(choice),
                "logprobs": _logprobs(choice),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices(outcome, head.wanted))
        ],
        "usage": usage(head, outcome),
        "search": search_block(head, outcome),
    }


class Chunks:
    """The ``chat.completion.chunk`` objects of one streamed reply."""

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._shared: Json = {
            "id": head.reply_id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "service_tier": head.service_tier,
        }
        self._progressed = False
        """Whether progress was told."""
        # As in OpenAI's API: if usage was requested, every chunk but the last has ``usage: null``.
        self._no_usage: Json = {"usage": None} if include_usage else {}

    def begin(self) -> Iterator[Data]:
        yield self._chunk(0, {"role": "assistant", "content": ""})

    def step(self, event: StepScored) -> Iterator[Data]:
        """Yields the progress: a readable line for people, the event itself for programs."""
        data = step_event(event)
        if self._head.wanted.calls is not None:
            # Agents send back what they got as reasoning, and a step may be half a call.
            yield self._chunk(0, {}, search_event=data)
            return
        self._progressed = True
        yield self._chunk(0, _reasoning(step_line(data)), search_event=data)

    def quiet(self, event: QuietEvent) -> Iterator[Data]:
        """Yields chunks without text: only programs need to know."""
        for part in quiet_events(event):
            yield self._chunk(0, {}, search_event=part)

    def end(self, outcome: SearchOutcome) -> Iterator[Data]:
        """Yields all choices, each with its thinking first, then the end of each; the last end contains the search
        block."""
        offered = choices(outcome, self._head.wanted)
        for index, choice in enumerate(offered):
            role = {"role": "assistant"} if index else {}
            if choice.thinking:
                heading = f"\n{HEADING}\n\n" if self._progressed and not index else ""
                for piece in pieces(heading + choice.thinking, THINKING_AT_ONCE):
                    yield self._chunk(index, {**role, **_reasoning(piece)})
                    role = {}
            logprobs = _logprobs(choice)
            if role or choice.content is not None:
                yield self._chunk(index, {**role, "content": choice.content}, logprobs=logprobs)
                logprobs = None
            for number, (call_id, name, arguments) in enumerate(choice.calls):
                begun = {"index": number, **call_of(call_id, name, "")}
                yield self._chunk(index, {"tool_calls": [begun]}, logprobs=logprobs)
                logprobs = None
                for piece in pieces(arguments):
                    delta = {"index": number, "function": {"arguments": piece}}
                    yield self._chunk(index, {"tool_calls": [delta]})
        for index, choice in enumerate(offered):
            last = index == len(offered) - 1
            block = {"search": search_block(self._head, outcome)} if last else {}
            yield self._chunk(index, {}, choice, **block)
        if self._include_usage:
            yield {**self._shared, "choices": [], "usage": usage(self._head, outcome)}
        yield DONE

    def failed(self, error: ApiError) -> Iterator[Data]:
        yield error.body

    def _chunk(
        self, index: int, delta: Json, ended: Choice | None = None, logprobs: Json | None = None, **extra: Any
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        if ended is not None:
            choice |= {**_answer_and_score(ended), "finish_reason": ended.finish_reason}
        return {**self._shared, "choices": [choice], **self._no_usage, **extra}


def _reasoning(text: str | None) -> Json:
    """The two names under which clients look for it."""
    return {"reasoning_content": text, "reasoning": text}


def call_of(call_id: str, name: str, arguments: str) -> Json:
    """A tool call in a chat's shape."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def pieces(text: str, at_once: int = ARGUMENTS_AT_ONCE) -> Iterator[str]:
    """Yields a text as it is streamed, by default the arguments of a call."""
    for begin in range(0, len(text), at_once):
        yield text[begin : begin + at_once]


def _answer_and_score(choice: Choice) -> Json:
    """Returns the fields of a choice that OpenAI's API does not have."""
    return {"answer": choice.answer, "score": choice.score}


def _logprobs(choice: Choice) -> Json | None:
    if choice.logprobs is None:
        return None
    return {"content": token_logprobs(choice.logprobs), "refusal": None}


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[Json]:
    """Returns log-probabilities in OpenAI's shape, without alternative tokens."""
    return [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in tokens
    ]


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
        "step_tokens": event.step_tokens,
        "logprob": logprob_as_json(event.logprob),
        "prefix_tokens": event.prefix_tokens,
        "cached_tokens": event.cached_tokens,
        "repeats": event.repeats,
        "repeated_by": event.repeated_by,
        **hook_as_json(event.hook),
        **thinking_as_json(event.thought, event.given),
    }


def quiet_events(event: QuietEvent) -> Iterator[Json]:
    """Yields the event, a long list of pruned steps in parts: readers limit the length of one."""
    if isinstance(event, ContextStarted):
        yield {"type": "context_started", **event._asdict()}
        return
    for begin in range(0, len(event.pruned), PRUNED_AT_ONCE):
        yield {
            "type": "steps_pruned",
            "pruned": event.pruned[begin : begin + PRUNED_AT_ONCE],
            "tokens": event.tokens,
            "nodes": event.nodes,
        }


def models(served_name: str, aliases: Sequence[str], created: int) -> Json:
    """A ``list`` of the base model, first, and of aliases of it."""
    names = [served_name, *(f"{served_name}:{alias}" for alias in aliases)]
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
        "usage": _usage(prompt_tokens + found.recomputed_tokens, found.generated_tokens),
    }


def rewards(model_name: str, scored: ScoreOutcome) -> Json:
    usage = _usage(scored.prompt_tokens, scored.generated_tokens)
    thoughts = {"thought_characters": list(scored.thoughts)} if scored.thoughts else {}
    return {"object": "score", "model": model_name, "rewards": list(scored.rewards), **thoughts, "usage": usage}


def _usage(prompt_tokens: int, completion_tokens: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def dumps(value: Json) -> str:
    """Returns compact JSON; refuses NaN and infinities."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_response(value: Json) -> Response:
    return Response(dumps(value), media_type="application/json")
