"""One question in the terminal: the growing tree, then the answer and its cost."""

import json
from collections.abc import AsyncIterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cluster.cli.growing_tree import GrowingTree, reward_text, shorten
from cluster.client.client import Client
from cluster.client.errors import ProtocolError
from cluster.client.printable import printable
from cluster.client.replies import Completion, Event, Question, Restarted, SearchBlock, StepScored
from search.run.report import SearchCost

FRAMES_PER_SECOND = 8
FINAL_LINES = 40
OTHER_LINES = 4
"""Screen lines for the status below the tree and for the shell's prompt."""


async def solve(client: Client, question: Question, console: Console, as_json: bool) -> Completion:
    """Sends the question, shows its events, and returns the whole reply.

    On a terminal the tree grows in place; elsewhere each scored step is a plain line; with ``as_json``
    the output is one JSON object at the end.
    """
    events = client.stream(question)
    try:
        if as_json:
            reply = await _last(events)
            console.file.write(json.dumps({"question": question.text, **reply.as_json()}, allow_nan=False) + "\n")
            return reply
        reply = await (_grow if console.is_terminal else _list)(events, question, console)
        console.print(answer_text(reply), soft_wrap=True)
        return reply
    finally:
        await events.aclose()


async def _grow(events: AsyncIterator[Event], question: Question, console: Console) -> Completion:
    tree = GrowingTree(question.text)

    def screen() -> RenderableType:
        return Group(tree.draw(max(4, console.height - OTHER_LINES)), tree.status)

    with Live(get_renderable=screen, console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True):
        async for event in events:
            if isinstance(event, Completion):
                break
            if isinstance(event, StepScored):
                tree.add(event)
            elif isinstance(event, Restarted):
                tree = GrowingTree(question.text)
            else:
                tree.answering = True
        else:
            raise ProtocolError("the stream ended without an answer")
    console.print(tree.draw(FINAL_LINES))
    return event


async def _list(events: AsyncIterator[Event], question: Question, console: Console) -> Completion:
    started = False
    async for event in events:
        if not started:
            console.print(Text(shorten(printable(question.text))), soft_wrap=True)
            started = True
        if isinstance(event, Completion):
            return event
        if isinstance(event, StepScored):
            node = ".".join(map(str, event.node))
            end = "  (end)" if event.terminal else ""
            added = f"  [step hook: {shorten(printable(event.added))}]" if event.added else ""
            line = f"{node:<12} {reward_text(event.reward)}  {shorten(printable(event.text))}{added}{end}"
            console.print(Text(line), soft_wrap=True)
        if isinstance(event, Restarted):
            console.print(Text(f"retrying from the beginning: {printable(event.reason)}"), soft_wrap=True)
    raise ProtocolError("the stream ended without an answer")


async def _last(events: AsyncIterator[Event]) -> Completion:
    async for event in events:
        if isinstance(event, Completion):
            return event
    raise ProtocolError("the stream ended without an answer")


def degraded_text(cost: SearchCost) -> str:
    """What a degraded search lacks."""
    if cost.hook_failures:
        return f"the step hook failed for {cost.hook_failures} steps"
    if cost.tool_limits:
        return f"{cost.tool_limits} programs met their time limit"
    return "some steps were never scored by the reward model"


def _vote(search: SearchBlock, agreement: float) -> str:
    """What decided for the answer, and how many of the samples gave it, which alone decides only by majority."""
    samples = f"{agreement:.0%} of the samples"
    if (
        search.selection == "weighted"
        and search.score is not None
        and search.answers
        and search.answers[0].vote is not None
    ):
        return f"{search.answers[0].vote:.0%} of the weight (score times samples), {samples}"
    return f"the best score, {samples}" if search.selection == "naive" else samples


def answer_text(reply: Completion) -> Text:
    """The answer with its reasoning, score, vote and cost."""
    search = reply.search
    text = Text("\n")
    text.append(printable(reply.text).strip() + "\n\n", style="")
    text.append("answer     ", style="dim")
    text.append(printable(search.answer) if search.answer is not None else "none found", style="bold")
    if search.score is not None:
        text.append("\nscore      ", style="dim")
        text.append(f"{search.score:.2f}")
    if search.agreement is not None:
        text.append("\nvote       ", style="dim")
        text.append(_vote(search, search.agreement))
    text.append("\ntokens     ", style="dim")
    text.append(f"{search.generated_tokens:,} generated, {search.cached_tokens:,} read from cache")
    if search.sample_tokens:  # Endpoints of earlier versions do not report it.
        text.append("\ncost       ", style="dim")
        text.append(search.bill)
    text.append("\nsearch     ", style="dim")
    text.append(f"{search.strategy}, {search.nodes:,} nodes, {search.prm_calls:,} PRM calls, {search.seconds:.1f} s")
    if search.seed is not None:
        text.append("\nseed       ", style="dim")
        text.append(str(search.seed))
    if search.stop_reason != "finished":
        text.append(f"\nThe search was cut short: {printable(search.stop_reason)}.", style="yellow")
    if search.degraded:
        text.append(f"\nDegraded: {degraded_text(search.cost_figures)}.", style="yellow")
    return text
