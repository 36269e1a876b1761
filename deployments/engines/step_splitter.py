"""Splits generated token ids into steps: where a step ends, why, and its text.

A step ends with the token that completes the step delimiter, unless the step so far is only whitespace and delimiters:
models often begin with newlines, which belong to the step that follows them.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from deployments.engines.reasoning import Marks
from deployments.engines.segments import Draft, Ending, Until
from search.answers.programs import FENCE, OPENING
from search.tree import NO_THOUGHT, Span, Step, StepEnd, Thought

WINDOW = 8
"""Fewest tokens behind which a detokenizer continues: more than a character has bytes."""
_INCOMPLETE = "\ufffd"
"""What stands for bytes that are no character."""


class StepStop(NamedTuple):
    """The engine's stop conditions for the end of a step. It stops at the first that is met."""

    token_ids: tuple[int, ...]
    """Tokens that contain the delimiter: the engine stops at once. On a GPU it drops a token that it has begun."""
    strings: tuple[str, ...]
    """The delimiter, where several tokens may spell it: only the text shows it, which costs detokenization."""


class StepSplitter:
    """Finds the step delimiter in the tokens of one tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        delimiter: str,
        eos_ids: frozenset[int],
        marks: Marks | None = None,
        call_marks: frozenset[int] = frozenset(),
    ) -> None:
        """``marks``: those between which the model thinks; None: it does not. ``call_marks``: special tokens that mark
        its tool calls."""
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._marks = marks
        added, tokens = tokenizer.added_tokens_decoder, marks.tokens if marks and marks.tokens else ()
        self._kept = call_marks.union(token for token in tokens if added[token].special)
        """Special tokens that are part of texts."""
        self._decoded: tuple[Sequence[int], str] = (), ""
        """The tokens whose text ``ending`` needed, which are a step's in nearly all cases."""
        self.delimiter = delimiter
        ids = range(len(tokenizer))
        texts = tokenizer.batch_decode([[token] for token in ids], skip_special_tokens=True)
        for token in self._kept:
            texts[token] = self.text([token])
        containing = {token for token, text in zip(ids, texts, strict=True) if delimiter in text}
        self._delimiter_ids = frozenset(containing - eos_ids)
        self._blank_ids = frozenset(token for token, text in zip(ids, texts, strict=True) if self.is_blank(text))
        self.stop = StepStop(
            tuple(sorted(self._delimiter_ids)), (delimiter,) if spelled_in_pieces(delimiter, texts) else ()
        )

    def step(
        self,
        token_ids: Sequence[int],
        cut_off: bool,
        logprobs: Sequence[float] | None = None,
        thought: int = 0,
        given: tuple[Span, ...] = (),
    ) -> Step:
        """Makes one step of generated ids.

        ``cut_off``: whether a limit ended the generation. ``logprobs``: the tokens' log-probabilities, nats.
        ``thought``: number of its first tokens that are thinking. ``given``: see `search.tree.Step`.
        """
        logprob = None if logprobs is None else math.fsum(logprobs)
        each = None if logprobs is None else tuple(logprobs)
        decoded, text = self._decoded
        text = text if decoded is token_ids else self.text(token_ids)
        end = self._end(token_ids, cut_off)
        thinking = Thought(thought, self._characters(token_ids[:thought])) if thought else NO_THOUGHT
        return Step(tuple(token_ids), text, end, logprob, each, thinking, given)

    def stop_at(self, until: Until, tool: bool = False) -> StepStop:
        """The stop conditions of a segment. ``tool``: whether it also ends where a program begins."""
        if until is Until.PROGRAM:
            return StepStop((), (FENCE,))
        stop = self.stop if until in (Until.STEP, Until.STEP_OR_THOUGHT) else StepStop((), ())
        if tool and until is not Until.THOUGHT:
            stop = stop._replace(strings=(*stop.strings, OPENING))
        marks = self._marks
        if marks is None or until in (Until.STEP, Until.SOLUTION):
            return stop
        at_end = until is Until.THOUGHT
        if marks.tokens is None:
            return stop._replace(strings=(*stop.strings, marks.closing if at_end else marks.opening))
        return stop._replace(token_ids=(*stop.token_ids, marks.tokens[at_end]))

    def ending(self, draft: Draft, cut_off: bool) -> Ending:
        """How the last segment of a branch ended."""
        token_ids, until = draft.token_ids, draft.segment.until
        end = self._end(token_ids, cut_off)
        if until in (Until.THOUGHT, Until.PROGRAM) or end is not StepEnd.DELIMITER:
            return Ending(end)
        if draft.task.tool and OPENING in self.text(token_ids[draft.start :]):
            return Ending(end, program=True)
        if until is Until.SOLUTION:
            return Ending(end)
        if until is not Until.STEP and (before := self._before_opening(token_ids)) is not None:
            return Ending(end, opened=True, blank=self.is_blank(before))
        behind = token_ids[draft.thought :]
        self._decoded = behind, self.text(behind)
        return Ending(end, blank=self.is_blank(self._decoded[1]))

    def steps(self, prompt: Sequence[int], draft: Draft, ending: Ending, cut_off: bool) -> tuple[Step, ...]:
        """The steps of a branch that is done: one, or those of a solution. Never empty."""
        task, until, token_ids, thought = draft.task, draft.segment.until, draft.token_ids, draft.thought
        # It stopped where something was to follow, for which there is no token left.
        cut_off = cut_off or until in (Until.THOUGHT, Until.PROGRAM) or ending.blank or ending.opened or ending.program
        if until is Until.THOUGHT:
            thought = len(token_ids)
        if task.until is Until.STEP:
            return (self.step(token_ids, cut_off, draft.logprobs, thought, draft.given),)
        if until is Until.SOLUTION and task.thought is not None and not thought:
            thought = self.thought_in(prompt, token_ids, task.thought.opened)
        programs = draft.programs
        if task.thought is not None and not (thought or task.thought.opened):
            programs = (*programs, *self._request_behind_mark(prompt, token_ids, programs))
        if until is Until.PROGRAM:  # It was not closed, or nothing could follow it.
            programs = (*programs, (draft.start, len(token_ids)))
        return self.split(prompt, token_ids, cut_off, draft.logprobs, thought, draft.given, programs)

    def _request_behind_mark(
        self, prompt: Sequence[int], token_ids: Sequence[int], programs: Sequence[Span]
    ) -> tuple[Span, ...]:
        """The last token of an opening mark in the middle of the first step, where step-by-step generation stops and
        goes on with a request of its own: no delimiter spans both."""
        mark = self._behind_mark(prompt, token_ids, at_end=False)
        given = any(start < mark <= end for start, end in programs)
        if mark == len(token_ids) or given or len(self.split(prompt, token_ids[:mark], True)) > 1:
            return ()
        return ((mark - 1, mark),)

    def thought_in(self, prompt: Sequence[int], token_ids: Sequence[int], opened: bool) -> int:
        """Number of tokens, the first of a whole solution to ``prompt``, that are thinking: all of them if the thought
        does not end. ``opened``: whether the prompt ends in an open thought."""
        marks = self._marks
        if marks is None:
            return 0
        begin = 0
        if not opened:
            begin = self._behind_mark(prompt, token_ids, at_end=False)
            before = self._before_opening(token_ids[:begin])
            if before is None or not self.is_blank(before):
                return 0
        return begin + self._behind_mark((*prompt, *token_ids[:begin]), token_ids[begin:], at_end=True)

    def split(
        self,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        cut_off: bool,
        logprobs: Sequence[float] | None = None,
        thought: int = 0,
        given: tuple[Span, ...] = (),
        programs: tuple[Span, ...] = (),
    ) -> tuple[Step, ...]:
        """Splits a whole solution to ``prompt`` into the steps that step-by-step generation would give. Never empty.

        ``thought``: as of ``step``, of the first step. ``given``, ``programs``: as of `Draft`; what follows a program
        is a request of its own.
        """
        if thought:
            head, behind = token_ids[:thought], token_ids[thought:]
            end = len(token_ids)
            inside = _within(given, thought, end), _within(programs, thought, end)
            first, *others = self.split((*prompt, *head), behind, cut_off, logprobs and logprobs[thought:], 0, *inside)
            size = thought + len(first.token_ids)
            first_cut_off, first_given = cut_off and not others, _within(given, 0, size)
            return (
                self.step(token_ids[:size], first_cut_off, logprobs and logprobs[:size], thought, first_given),
                *others,
            )
        bounds = [0]
        looked_at = 0
        for stop in self._stops(prompt, token_ids, programs):
            # Blank tokens behind a blank text need not be decoded: a model may write nothing but newlines.
            if not self._blank_ids.issuperset(token_ids[looked_at:stop]) and not self.is_blank(
                self.text(token_ids[bounds[-1] : stop])
            ):
                bounds.append(stop)
            looked_at = stop
        bounds.append(len(token_ids))
        last = len(bounds) - 2
        return tuple(
            self.step(
                token_ids[start:stop],
                cut_off and index == last,
                logprobs and logprobs[start:stop],
                given=_within(given, start, stop),
            )
            for index, (start, stop) in enumerate(itertools.pairwise(bounds))
        )

    def is_blank(self, text: str) -> bool:
        """Whether a text is only whitespace and delimiters, and so no step yet."""
        return not text.replace(self.delimiter, "").strip()

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of ids, without special tokens but for the marks of thinking and of tool calls."""
        if not self._kept.isdisjoint(token_ids):
            runs = itertools.groupby(token_ids, self._kept.__contains__)
            return "".join(
                "".join(map(self._tokenizer.convert_ids_to_tokens, run)) if kept else self.text(list(run))
                for kept, run in runs
            )
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def _end(self, token_ids: Sequence[int], cut_off: bool) -> StepEnd:
        if token_ids and token_ids[-1] in self._eos_ids:
            return StepEnd.END_OF_SEQUENCE
        return StepEnd.LENGTH if cut_off else StepEnd.DELIMITER

    def _characters(self, thought: Sequence[int]) -> int:
        """Length of a thought's text: up to its closing mark, or all of it without one."""
        marks, text = self._marks, self.text(thought)
        assert marks is not None
        closed = marks.closing in text if marks.tokens is None else marks.tokens[1] in thought
        return text.rindex(marks.closing) + len(marks.closing) if closed else len(text)

    def _before_opening(self, token_ids: Sequence[int]) -> str | None:
        """The text before the opening mark with which these tokens end; None if they end otherwise."""
        marks = self._marks
        if marks is None or not token_ids:
            return None
        if marks.tokens is not None:
            return self.text(token_ids[:-1]) if token_ids[-1] == marks.tokens[0] else None
        before, mark, _ = self.text(token_ids).partition(marks.opening)
        return before if mark else None

    def _behind_mark(self, prompt: Sequence[int], token_ids: Sequence[int], at_end: bool) -> int:
        """Number of tokens up to the first closing mark, ``at_end``, or else opening mark; all of them without one."""
        marks = self._marks
        assert marks is not None
        if marks.tokens is not None:
            mark = marks.tokens[at_end]
            return next((number for number, token in enumerate(token_ids, 1) if token == mark), len(token_ids))
        detokenizer = self._detokenizer(prompt, (marks.closing if at_end else marks.opening,))
        assert detokenizer is not None
        for number, token in enumerate(token_ids, 1):
            if detokenizer.update([token], stop_terminated=False) is not None:
                return number
        return len(token_ids)

    def _stops(self, prompt: Sequence[int], token_ids: Sequence[int], programs: Sequence[Span] = ()) -> Iterator[int]:
        """Number of tokens at each stop of step-by-step generation, without the stop at the end."""
        detokenizer = self._detokenizer(prompt, self.stop.strings)
        before = 0
        # What the model writes behind a program is a request of its own.
        ends = dict(programs)
        behind = 0
        for stop, token in enumerate(token_ids[:-1], 1):
            behind = ends.get(stop - 1, behind)
            if stop <= behind:
                if stop == behind:
                    recent = self._read_behind(prompt, token_ids, before, stop)
                    detokenizer, before = self._detokenizer(recent, self.stop.strings), stop
                continue
            at_string = detokenizer is not None and detokenizer.update([token], stop_terminated=False) is not None
            if at_string or token in self._delimiter_ids:
                yield stop
                if detokenizer is not None:
                    recent = self._read_behind(prompt, token_ids, before, stop)
                    detokenizer = self._detokenizer(recent, self.stop.strings)
                before = stop

    def _read_behind(self, prompt: Sequence[int], token_ids: Sequence[int], before: int, stop: int) -> Sequence[int]:
        """The ids of a prefix by which a detokenizer decodes what follows ``stop``: those since the stop before it, or
        a few more. It reads all that it is given, so all of the prefix at each stop would be quadratic.

        All of it is given where the text of these might depend on what stands before them: they hold no text of their
        own, or begin within a character.
        """
        if (start := min(before, stop - WINDOW)) > 0:
            text = self.text(recent := token_ids[start:stop])
            if text and _INCOMPLETE not in text:
                return recent
        return (*prompt, *token_ids[:stop])

    def _detokenizer(self, prompt: Sequence[int], strings: Sequence[str]) -> IncrementalDetokenizer | None:
        """vLLM's own search for stop strings, so that both always agree; None where there are no stop strings.

        No other detokenizer decodes characters that span several tokens exactly like it.
        """
        if not strings:
            return None
        request = EngineCoreRequest(
            request_id="",
            prompt_token_ids=list(prompt),
            mm_features=None,
            sampling_params=SamplingParams(stop=list(strings), include_stop_str_in_output=True),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        return IncrementalDetokenizer.from_new_request(self._tokenizer, request)


def _within(spans: Sequence[Span], start: int, stop: int) -> tuple[Span, ...]:
    """The spans that begin from ``start`` to before ``stop``, relative to ``start``."""
    return tuple((begin - start, end - start) for begin, end in spans if start <= begin < stop)


def spelled_in_pieces(delimiter: str, texts: Iterable[str]) -> bool:
    """Whether several tokens with these texts can spell the delimiter, none of them containing it.

    True in doubt: tokens of characters beyond ASCII may be bytes, which have no text of their own, and some tokenizers
    drop the leading space of a token that is decoded alone.
    """
    if not delimiter.isascii() or " " in delimiter:
        return True
    pieces = {text for text in texts if delimiter not in text}
    size = len(delimiter)
    spelled = {end for end in range(1, size) if any(text.endswith(delimiter[:end]) for text in pieces)}
    for end in range(1, size):
        if end in spelled:
            spelled |= {further for further in range(end + 1, size) if delimiter[end:further] in pieces}
    return any(text.startswith(delimiter[end:]) for end in spelled for text in pieces)
