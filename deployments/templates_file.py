"""The setting ``controller.templates``: prompts of the operator's own, read from their file where settings are checked.

So the texts themselves, not a path, reach the controllers, which may be on machines without the file.
"""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from search.templates import Template

MAX_BYTES = 1 << 18


def _as_templates(given: Any) -> Any:
    """The content of a file for its path; all else as it is.

    Raises:
        ValueError: the file cannot be read, or is no YAML.
    """
    if not isinstance(given, str):
        return given
    file = Path(given).expanduser()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{file} has more than {MAX_BYTES} bytes")
        return yaml.safe_load(file.read_bytes()) or {}
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {error}") from error


def _may_choose(templates: dict[str, Template]) -> dict[str, Template]:
    if "select" in templates and not templates["select"].choice:
        raise ValueError("select.choice: must be the text before the number of the chosen solution")
    return templates


TemplatesSetting = Annotated[
    dict[str, Template],
    BeforeValidator(_as_templates),
    AfterValidator(_may_choose),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    Field(
        description="Prompts in which the model reads its solutions, by name, in place of the default ones "
        "([reading.md](reading.md#templates)): a YAML file, or its content."
    ),
]
