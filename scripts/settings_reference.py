"""Writes docs/settings.md from the settings themselves.

.venv/bin/python scripts/settings_reference.py            writes it
.venv/bin/python scripts/settings_reference.py --check    exits with 1 where it is not up to date
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deployments.config import AppConfig, ControllerUserConfig

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """\
# Settings

Made by `scripts/settings_reference.py` from the settings themselves. All of them belong under `args:` of a file like
`serve_config.yaml`. An invalid value is refused; the error names its path and what is allowed.
[operating.md](operating.md) lists the settings that can change without a restart.

The most important settings:

| setting | meaning |
|---|---|
| `generator.model`, `generator.served_name` | the model that writes the steps, and its name for clients |
| `prm.family`, `prm.model` | the model that scores the steps ([rewards.md](rewards.md)) |
| `kv_cache_memory_bytes` of `generator` and `prm` | KV memory, which limits concurrent branches (see `banyan plan`) |
| `replicas` of `generator` and `prm` | number of engines: `{min_replicas: 2, max_replicas: 4}` |
| `controller.searches` | concurrent requests of a controller replica; beyond it 429 |
"""
BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "a multiple of {}",
    "maxItems": "at most {}",
    "pattern": "`{}`",
}


def page() -> str:
    """The whole page."""
    schema = AppConfig.model_json_schema()
    user_config = ControllerUserConfig.model_json_schema()
    reference = _Reference(schema["$defs"] | user_config["$defs"])
    live = reference.section("`user_config` of SearchController", user_config)
    return "\n".join([HEAD, *reference.sections("", schema), *live])


class _Reference:
    """Goes through the settings tree. What several places have in common is told at the first of them."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._told: dict[str, str] = {}
        """Where each group of settings is told, by its title."""
        self._engine: dict[str, Any] = {}
        """The generator's settings, most of which a reward model has too."""

    def sections(self, path: str, of: dict[str, Any]) -> Iterator[str]:
        """One for a node of the settings, and for each below it."""
        family = of["properties"].get("family", {}).get("const")
        title = (f"`{path}` of family `{family}`" if family else f"`{path}`") if path else "At the top"
        if path == "generator" and "url" in of["properties"]:
            title += " with `url`"
        yield from self.section(title, of)
        self._engine = self._engine or (of["properties"] if path == "generator" else {})
        for name, field in of["properties"].items():
            for node in _nodes(field, self._known):
                if node["title"] not in self._told:
                    label = f"{path}.{name}".lstrip(".")
                    self._told[node["title"]] = label
                    yield from self.sections(label, node)

    def section(self, title: str, of: dict[str, Any]) -> Iterator[str]:
        """The settings that are values."""
        yield f"## {title}\n"
        if "description" in of:
            yield " ".join(of["description"].split("\n\n")[0].split()).replace("``", "`") + "\n"
        same = [name for name, field in of["properties"].items() if self._engine.get(name) == field]
        rows = [
            _row(name, field, self._known)
            for name, field in of["properties"].items()
            if name not in same and name != "family" and not _nodes(field, self._known)
        ]
        if same:
            yield f"Same as for the generator: {', '.join(f'`{name}`' for name in same)}.\n"
        if rows:
            yield "| setting | default | allowed | meaning |\n|---|---|---|---|"
            yield "\n".join(rows) + "\n"


def _nodes(field: dict[str, Any], known: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups of settings that a field stands for: one, or several of which one is chosen."""
    named = [field, *field.get("oneOf", ()), *field.get("anyOf", ()), *field.get("allOf", ())]
    found = [known[each["$ref"].rsplit("/", 1)[-1]] for each in named if "$ref" in each]
    return [each for each in found if "properties" in each]


def _row(name: str, field: dict[str, Any], known: dict[str, Any]) -> str:
    default = f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else ""
    cells = [f"`{name}`", default, _allowed(field, known), " ".join(field.get("description", "").split())]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _allowed(field: dict[str, Any], known: dict[str, Any]) -> str:
    if "$ref" in field:
        return _allowed(known[field["$ref"].rsplit("/", 1)[-1]], known)
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_allowed(each, known) for each in field["anyOf"]))
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    bounds = [words.format(_number(field[bound])) for bound, words in BOUNDS.items() if bound in field]
    return ", ".join([str(field.get("type", "any")), *bounds])


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
