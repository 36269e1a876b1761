"""YAML as people write it."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, nothing by reference, lists indented."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(content: Any, comment: str = "") -> str:
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=116, allow_unicode=True)
