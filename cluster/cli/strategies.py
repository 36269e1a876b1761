"""``banyan strategies``: lists the strategies and their settings."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from search.settings import SHARED_SETTINGS, search_schema
from search.strategies.base import Strategy
from search.strategies.catalog import STRATEGIES


def show_strategies(console: Console, name: str | None) -> None:
    """Prints all strategies, one line each, or one with its settings."""
    console.print(_settings(name) if name else _overview())


def _overview() -> RenderableType:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    table.add_column("alias", no_wrap=True)
    table.add_column("description")
    for name, strategy in STRATEGIES.items():
        alias = ", ".join(alias for alias in strategy.aliases if alias != name)
        table.add_row(name, alias, _paragraphs(strategy)[0])
    below = (
        "banyan strategies NAME shows one with its settings.",
        'Token-level beam search is separate: POST /v1/completions with "use_beam_search": true (docs/http.md).',
    )
    return Group(table, Text("\n" + "\n".join(below), style="dim"))


def _settings(name: str) -> RenderableType:
    schema = search_schema()
    described: dict[str, Any] = next(each for each in schema["oneOf"] if each["title"] == name)["properties"]
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for heading in ("setting", "default", "allowed"):
        table.add_column(heading, no_wrap=True)
    table.add_column("meaning")
    for setting, field in described.items():
        if setting not in ("strategy", *SHARED_SETTINGS):
            default = field.get("default", "")
            kind = _resolved(field, schema)
            meaning = field.get("description") or kind.get("description", "")
            table.add_row(setting, "unset" if default is None else str(default), _allowed(kind), meaning)
    shared = f"\nEvery search also takes: {', '.join(SHARED_SETTINGS)}."
    document = "\n\n".join(_paragraphs(STRATEGIES[name]))
    return Group(Text(name, style="bold"), Text(document + "\n"), table, Text(shared, style="dim"))


def _paragraphs(strategy: type[Strategy]) -> list[str]:
    """The paragraphs of a strategy's docstring, each in one line."""
    return [
        " ".join(paragraph.split()) for paragraph in (strategy.__doc__ or "").replace("``", "").strip().split("\n\n")
    ]


def _resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field's value, without null and references."""
    field = next((each for each in field.get("anyOf", []) if each.get("type") != "null"), field)
    if "$ref" in field:
        named: dict[str, Any] = schema["$defs"][field["$ref"].rpartition("/")[2]]
        return named
    return field


def _allowed(field: dict[str, Any]) -> str:
    """Short text of a setting's allowed values."""
    if "const" in field:
        return str(field["const"])
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if field.get("type") == "boolean":
        return "true | false"
    if field.get("type") == "array":
        return "a list"
    if "properties" in field:
        return ", ".join(field["properties"])
    low = f"{field['minimum']:g}" if "minimum" in field else f"over {field.get('exclusiveMinimum', 0):g}"
    return f"{low} to {field['maximum']:g}" if "maximum" in field else low
