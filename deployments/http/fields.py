"""Fields of requests that no search reads: refused where they would change the answer, and ignored otherwise.

Clients send many fields that this endpoint does not have, most of them without effect: values that are the default
anyway, or hints for caches and accounts. An unknown field is ignored too, and named in the reply's notes, unless it
looks like a misspelt field of ours or the operator refuses unknown fields (``http.unknown_fields``).
"""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import BaseModel

from deployments.admission.errors import BadRequest
from deployments.config import UnknownFields
from deployments.http.json_body import Model, Path, validated
from search.settings import SHARED_SETTINGS
from search.strategies.catalog import STRATEGIES
from search.tools.listing import listed

EMPTY: tuple[Any, ...] = (None, "", [])
"""Values that have no effect in any unsupported field."""
MAX_UNKNOWN = 64
"""Maximum number of different unknown fields in a request: each is compared with all known ones."""
MAX_NAME_CHARS = 64
"""Longer names are no misspelling, and are cut off in notes."""
MAX_NAMED = 16
"""Maximum number of names in a note."""
SIMILARITY = 0.82
"""Minimum ratio of ``difflib`` for a misspelling: ``serach`` is one, ``user_id`` is none of ``user``."""


class FieldRules(NamedTuple):
    """The fields of a route's requests that its model does not have."""

    ignored: frozenset[str]
    """Fields without effect on an answer: accepted with any value."""
    unsupported: Mapping[str, tuple[Any, ...]]
    """Fields with an effect, each with its values (besides `EMPTY`) that have none and are accepted."""
    reasons: Mapping[str, str]
    """Why some of them are not supported, or which field says the same here."""


IGNORED = frozenset(
    {
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "safety_identifier", "store", "user"),
        *("early_stopping", "include_reasoning", "length_penalty", "reasoning_format"),
        "spaces_between_special_tokens",
    }
)
"""Fields of OpenAI's API, and of vLLM's, on every route that does not read them."""

ENGINES_FIELDS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": (),
    "dry_multiplier": (0,),
    "ebnf": (),
    "echo": (False,),
    "enable_thinking": (),
    "extra_body": ({},),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "logits_processors": (),
    "max_new_tokens": (),
    "min_tokens": (0,),
    "mirostat": (0,),
    "n_predict": (),
    "prompt_logprobs": (False,),
    "regex": (),
    "repeat_penalty": (1,),
    "repetition_detection": (),
    "repetition_penalty": (1,),
    "skip_special_tokens": (True,),
    "stop_sequences": (),
    "stop_token_ids": (),
    "structured_outputs": ({},),
    "thinking": (),
    "thinking_token_budget": (),
    "top_a": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "xtc_probability": (0,),
}
"""Fields of vLLM and of other servers that change an answer."""

_SCHEMA = dict.fromkeys(("guided_json", "json_schema", "structured_outputs"), "say response_format")
_CHATS = {"continue_final_message": "it is at /v1/chat/completions"}

CHAT_FIELDS = FieldRules(
    IGNORED,
    ENGINES_FIELDS
    | {
        "add_special_tokens": (False,),
        "audio": (),
        "best_of": (1,),
        "frequency_penalty": (0,),
        "function_call": ("none", "auto"),
        "functions": (),
        "input": (),
        "instructions": (),
        "logit_bias": ({},),
        "max_output_tokens": (),
        "modalities": (["text"],),
        "moderation": (),
        "presence_penalty": (0,),
        "reasoning": ({},),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
    _SCHEMA
    | {
        "enable_thinking": "use chat_template_kwargs",
        "extra_body": "put its fields beside the others",
        "input": "use messages",
        "instructions": "put it into messages",
        "echo": "the reply has only what comes after the continued message",
        "max_new_tokens": "use max_tokens or max_completion_tokens",
        "max_output_tokens": "use max_completion_tokens",
        "n_predict": "use max_tokens or max_completion_tokens",
        "reasoning": "use reasoning_effort",
        "stop_sequences": "use stop",
        "use_beam_search": "it is at /v1/completions",
    },
)
RESPONSES_FIELDS = FieldRules(
    IGNORED | {"access_programs", "image", "max_tool_calls"},
    ENGINES_FIELDS
    | {
        "context_management": (),
        "conversation": (),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "logprobs": (False,),
        "max_completion_tokens": (),
        "max_tokens": (),
        "messages": (),
        "moderation": (),
        "n": (1,),
        "presence_penalty": (0,),
        "prompt": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "stop": ([""],),
        "truncation": ("disabled",),
    },
    _CHATS
    | dict.fromkeys((*_SCHEMA, "response_format"), "say text.format")
    | {
        "conversation": "conversations are not stored here: use previous_response_id, or send the messages in input",
        "enable_thinking": "use chat_template_kwargs",
        "extra_body": "put its fields beside the others",
        "logprobs": "use include",
        "max_completion_tokens": "use max_output_tokens",
        "max_new_tokens": "use max_output_tokens",
        "max_tokens": "use max_output_tokens",
        "messages": "use input",
        "reasoning_effort": "use reasoning.effort",
        "use_beam_search": "it is at /v1/completions",
    },
)
COMPLETION_FIELDS = FieldRules(
    # Nothing is sampled.
    IGNORED | {"min_p", "seed", "stream_options", "top_k", "top_p"},
    ENGINES_FIELDS
    | {
        "add_special_tokens": (False,),
        "beam_width": (),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "logprobs": (0,),
        "messages": (),
        "presence_penalty": (0,),
        "prompt_embeds": (),
        "response_format": ({"type": "text"},),
        "search": ({},),
        "stop": ([""],),
        "stream": (False,),
        "suffix": (),
    },
    _CHATS
    | {
        "beam_width": "use n, or best_of if it is larger",
        "messages": "use prompt",
        "search": "searches are at /v1/chat/completions",
    },
)

_SEARCH_SETTINGS = frozenset(
    {"strategy", *SHARED_SETTINGS, *(name for each in STRATEGIES.values() for name in each.model_fields)} - {"name"}
)


def parsed(model: type[Model], body: Mapping[str, Any], rules: FieldRules, unknown: UnknownFields) -> Model:
    """Validates a body without the fields that have no effect.

    Raises:
        BadRequest: a field is invalid, not supported, misspelt or (with ``unknown`` at ``refuse``) unknown; names the
            path of the first one.
    """
    fields = model.model_fields.keys()
    extra = body.get("extra_body")
    if isinstance(extra, dict) and extra.items() <= body.items():
        # its_hub sends this argument of OpenAI's Python client as a field too, and all of it in its place besides.
        body = {**body, "extra_body": {}}
    for name, value in body.items():
        if name in rules.unsupported and name not in fields and value not in (*EMPTY, *rules.unsupported[name]):
            reason = f": {rules.reasons[name]}" if name in rules.reasons else ""
            raise BadRequest(f"{name} is not supported{reason}", name, "unsupported_parameter")
    unread = (rules.ignored | rules.unsupported.keys()) - fields
    request = validated(model, {name: value for name, value in body.items() if name not in unread}, extra="allow")
    _check_unknown(request, rules.unsupported.keys() - body.keys(), unknown)
    return request


def unknown_notes(request: BaseModel) -> list[str]:
    """Returns the note on the unknown fields of a request, which were ignored; none if none of them said anything."""
    names = sorted({_generic(path) for path, _, value in _unknown(request) if value not in (*EMPTY, {}, False)})
    if not names:
        return []
    return [f"unknown fields have no effect here: {listed(names, MAX_NAMED)}"]


def nearest(name: str, known: Collection[str]) -> str | None:
    """Returns the known name that ``name`` probably misspells, if any; ``maxTokens`` misspells ``max_tokens``."""
    plain = {_plain(each): each for each in known}
    found = get_close_matches(_plain(name), plain, 1, SIMILARITY) if len(name) <= MAX_NAME_CHARS else []
    return plain[found[0]] if found else None


def unknown_field(path: str, meant: str | None = None) -> BadRequest:
    """The error for an unknown field. ``meant``: the field that it probably misspells."""
    hint = f"; did you mean {meant}?" if meant else ""
    return BadRequest(f"unknown field: {path}{hint}", path, "unknown_parameter")


def _check_unknown(request: BaseModel, also_known: Collection[str], unknown: UnknownFields) -> None:
    seen: set[tuple[type[BaseModel], str]] = set()
    for path, part, value in _unknown(request):
        name = str(path[-1])
        if unknown == "ignore" and (value is None or (type(part), name) in seen):
            continue
        seen.add((type(part), name))
        if len(seen) > MAX_UNKNOWN:
            raise BadRequest(f"more than {MAX_UNKNOWN} unknown fields", _dotted(path), "unknown_parameter")
        if part is request and name in _SEARCH_SETTINGS:
            raise unknown_field(name, f"search.{name}")
        meant = nearest(name, [*_unset(part), *(also_known if part is request else ())])
        if meant or unknown == "refuse":
            raise unknown_field(_dotted(path), meant and _dotted((*path[:-1], meant)))


def _unset(part: BaseModel) -> Iterator[str]:
    """Yields the fields that an unknown one may misspell: those that the request does not set and that are read."""
    for name, field in type(part).model_fields.items():
        if name not in part.model_fields_set and field.annotation is not Any:
            yield name


def _unknown(part: BaseModel, path: Path = ()) -> Iterator[tuple[Path, BaseModel, Any]]:
    """Yields path, holder and value of each unknown field of a request and of the objects in it."""
    for name, value in (part.model_extra or {}).items():
        yield (*path, name), part, value
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _unknown(value, (*path, name))
        elif isinstance(value, list):
            for index, member in enumerate(value):
                if isinstance(member, BaseModel):
                    yield from _unknown(member, (*path, name, index))


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _generic(path: Path) -> str:
    """``messages.id`` for the field of any message, cut off where it is long."""
    return ".".join(str(part)[:MAX_NAME_CHARS] for part in path if not isinstance(part, int))


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
