"""Writes the page with saved searches in it as one HTML file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.cli.failures import refuse
from deployments.http.page import single_file
from search.snapshot import TreeView, restore_tree, tree_as_json
from search.tree import GIVEN_UP, NodeId, NodeStatus, context_id

MAX_BYTES = 256 << 20
"""Longest input. The page holds it all in memory."""
MAX_SEARCHES = 2
"""Searches that the page shows side by side."""

Json = dict[str, Any]


def write_tree(source: Path, line: int | None, output: Path) -> int:
    """Writes the page for a file: an export of the page, a reply of ``/v1/search``, the events of a kept search, a tree
    of `search.save_tree`, or the results of ``banyan batch --trees``. Returns the number of searches in it.

    Args:
        line: For results, the number of the input's line; None takes the only one.
    """
    try:
        if source.stat().st_size > MAX_BYTES:
            refuse(f"{source} is longer than {MAX_BYTES >> 20} MiB")
        searches = _searches(source.read_text(encoding="utf-8"), line, source)
    except OSError as error:
        refuse(f"cannot read {source}: {error.strerror or error}")
    except (AttributeError, LookupError, TypeError):
        refuse(f"{source} is not in Banyan's format")
    except (RecursionError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        refuse(f"{source} has no tree that can be shown: {reason}")
    try:
        output.write_text(single_file(searches[:MAX_SEARCHES]), encoding="utf-8")
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror or error}")
    return len(searches[:MAX_SEARCHES])


def _searches(text: str, line: int | None, source: Path) -> list[Json]:
    if any(each.startswith("data:") for each in text[:4096].split("\n")):
        return [_streamed(text)]
    lines = [each for each in text.splitlines() if each.strip()]
    if line is None and len(lines) > 1 and _is_object(lines[0]):
        refuse(f"{source} has {len(lines):,} results: choose one with --line")
    if line is not None:
        found = (parsed for each in lines if (parsed := json.loads(each)).get("line") == line)
        parsed = next(found, None)
        if parsed is None:
            refuse(f"{source} has no result of line {line}")
    else:
        parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ValueError("it is not a JSON object")
    if isinstance(exported := parsed.get("searches"), list) and exported:
        if any(not isinstance(each, dict) or not isinstance(each.get("events"), list) for each in exported):
            raise ValueError("searches must be objects with events")
        return exported
    return [_of_tree(parsed)]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _streamed(text: str) -> Json:
    """A search from its stream: of ``/v1/searches/{id}/events``, or of a chat."""
    events: list[Json] = []
    search: Json | None = None
    about: Json = {}
    answer = ""
    for data in (each.removeprefix("data:").strip() for each in text.split("\n") if each.startswith("data:")):
        chunk = {} if data == "[DONE]" else json.loads(data)
        if "search_event" in chunk:
            events.append(chunk["search_event"])
        kept = chunk.get("search")
        if chunk.get("object") == "chat.completion.chunk":
            search = kept or search
            first = (choice["delta"] for choice in chunk["choices"] if choice["index"] == 0)
            answer += "".join(delta.get("content") or "" for delta in first)
        elif kept:
            about = {"question": kept.get("question")}
            reply = kept.get("reply") or {}
            search = reply.get("search")
            answer = reply["choices"][0]["message"]["content"] if reply else ""
    if not events:
        raise ValueError("the stream has no search_event")
    return {**about, **_settings(search or {}), "events": events, "search": search, "answer": answer}


def _of_tree(parsed: Json) -> Json:
    """A search from an object with a tree."""
    if "tree" in parsed:
        search = parsed.get("search") or parsed
        choices = parsed.get("choices")
        answer = choices[0]["message"]["content"] if choices else parsed.get("text", "")
        about = {"question": parsed.get("problem"), **_settings(search)}
        view = TreeView.model_validate(parsed["tree"])
        if "node" not in search:
            search = search | {"node": _answering(view, answer)}
        return {**about, "events": list(_events(view)), "search": search, "answer": answer}
    if "nodes" in parsed:
        saved = tree_as_json(restore_tree(parsed)) if "seed" in parsed else parsed
        return {"seed": parsed.get("seed"), "events": list(_events(TreeView.model_validate(saved)))}
    raise ValueError(
        "it has neither a tree nor events; for a stored search, save its events: GET /v1/searches/{id}/events"
    )


def _answering(view: TreeView, text: str) -> NodeId | None:
    """The end of the path whose text behind the thinking is the answer; None if a stop text has cut it off. Results do
    not name it."""
    texts: dict[NodeId, str] = dict.fromkeys([(), *(context.id for context in view.contexts)], "")
    for node in sorted(view.nodes, key=lambda node: len(node.id)):
        texts[node.id] = texts[node.id[:-1]] + node.solution + (node.hook.text if node.hook else "")
        if text and texts[node.id] == text and node.status is NodeStatus.TERMINAL:
            return node.id
    return None


def _settings(search: Json) -> Json:
    n = search.get("n")
    return {"strategy": search.get("strategy"), "width": f"n {n}" if n and n > 1 else None, "seed": search.get("seed")}


def _events(view: TreeView) -> Iterator[Json]:
    """The tree's nodes as events of a stream, context by context and level by level: a tree does not say when its steps
    were scored."""
    first: dict[tuple[NodeId, str], NodeId] = {}
    shown: dict[NodeId, NodeId] = {(): ()}
    contexts = {context.id: context for context in view.contexts}
    order = {node_id: number for number, node_id in enumerate([(), *contexts])}
    pruned: list[NodeId] = []
    tokens = 0
    # Within a level, the node that represents a text comes before its repetitions.
    for node in sorted(
        view.nodes,
        key=lambda node: (order[context_id(node.id)], len(node.id), node.status is NodeStatus.REPEATED, node.id),
    ):
        if node.text is None:
            continue
        if (context := contexts.pop(node.id[:-1], None)) is not None:
            shown[context.id] = context.id
            about = context.model_dump(include={"sources", "template", "prompt_tokens"})
            yield {"type": "context_started", "context": context.id, **about, "tokens": tokens}
        text = (shown[node.id[:-1]], node.text)
        represents = first.setdefault(text, node.id) if node.status is NodeStatus.REPEATED else node.id
        first.setdefault(text, node.id)
        shown[node.id] = represents
        tokens += node.tokens
        if node.status in GIVEN_UP:
            pruned.append(node.id)
        yield {
            "type": "step_scored",
            "node": node.id,
            "text": node.text,
            **node.model_dump(include={"thought", "given", "hook"}),
            "reward": node.reward,
            "terminal": node.ends or node.status is NodeStatus.TERMINAL,
            "tokens": tokens,
            "step_tokens": node.tokens,
            "logprob": node.model_dump(mode="json")["logprob"],
            "repeats": None if represents == node.id else represents,
        }
    if pruned:
        yield {"type": "steps_pruned", "pruned": pruned, "tokens": tokens}
