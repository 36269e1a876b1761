"""A search that is answered from the answer cache, where an answer is known."""

from array import array

from fastapi import Request
from starlette.datastructures import Headers

from deployments.admission.auth import key_of
from deployments.config import KeyRecord
from deployments.http.chat.schema import ChatRequest
from deployments.http.endpoint import Endpoint
from deployments.http.streaming import Searching
from deployments.service.answer_cache import MAX_EVENTS, AnswerCache, Question, digest_of
from deployments.service.searches import SearchJob
from deployments.service.slots import Slot
from search.run.report import EventSink, SearchEvent, SearchOutcome, ShownEvent

NO_STORE = "no-store"


class CachedSearch:
    """Runs a search unless its answer is known: then its sinks get the events of the search that found the answer, and
    its slot is charged nothing."""

    def __init__(self, searches: Searching, answers: AnswerCache, question: Question, fresh: bool) -> None:
        """``searches``: runs the search. ``fresh``: whether it runs in any case; its answer replaces a known one."""
        self._searches = searches
        self._answers = answers
        self._question = question
        self._fresh = fresh

    async def search(self, job: SearchJob, slot: Slot, *sinks: EventSink) -> SearchOutcome:
        """Like `deployments.service.searches.SearchService.search`, with a `CachedOutcome` for a known answer."""
        question = self._question
        if self._fresh:
            vector = await self._answers.vector_of(question)
        else:
            match, vector = await self._answers.match(question)
            if match is not None:
                for event in match.kept.events:
                    for sink in sinks:
                        sink(event)
                return match.kept.found(job.search_id, match.similarity)
        events: list[ShownEvent] = []

        def note(event: SearchEvent) -> None:
            if isinstance(event, ShownEvent) and len(events) <= MAX_EVENTS:
                events.append(event)

        outcome = await self._searches.search(job, slot, note, *sinks)
        self._answers.keep(question, vector, outcome, events)
        return outcome


def answering(request: Request, served: Endpoint, chat: ChatRequest, job: SearchJob) -> Searching:
    """Returns what runs the search. It asks the answer cache first if there is one, unless the request refuses it."""
    if served.answers is None or job.calls is not None:
        return served.searches
    wanted = cache_control(request.headers)
    if NO_STORE in wanted:
        return served.searches
    question = question_of(chat, job, key_of(request.scope))
    return CachedSearch(served.searches, served.answers, question, fresh="no-cache" in wanted)


def question_of(request: ChatRequest, job: SearchJob, key: KeyRecord | None) -> Question:
    """Returns the question of a request as the cache compares it.

    Two requests ask the same if one search would answer both: same key, same tokens before the answer, same settings.
    Choices, streaming and service tier are no part of it. A request with a seed or a beginning of the answer wants its
    own search, not that of a question which means the same; and a tool's result is no question.
    """
    common = (key and key.digest, job.json_schema, job.settings.model_dump_json())
    prompt = array("L", job.prompt.token_ids).tobytes()  # The repr of a long prompt's tokens takes milliseconds.
    digest = digest_of(*common, job.question, prompt, job.prompt.messages, job.prefill)
    *earlier, last = request.conversation
    context = None
    if job.settings.seed is None and not request.prefill and last.role != "tool":
        kwargs = sorted((request.chat_template_kwargs or {}).items())
        told = [(each.role, each.shown, each.name, each.tool_calls, each.tool_call_id) for each in earlier]
        context = digest_of(*common, told, last.name, kwargs)
    return Question(digest, context, last.text)


def cache_control(headers: Headers) -> frozenset[str]:
    """Returns the directives of ``Cache-Control``: `NO_STORE` neither uses nor fills the cache, ``no-cache`` only fills
    it."""
    given = ",".join(headers.getlist("cache-control")).lower()
    return frozenset(directive.strip() for directive in given.split(","))
