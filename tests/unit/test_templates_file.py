"""Templates of an operator's own, in the settings."""

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import ValidationError

from deployments.config import ControllerSettings
from search.strategies.reading.select import Select
from search.templates import TEMPLATES, Template
from tests.unit.documentation.pages import ROOT

OWN = {"prompt": "{question} {candidates} {note}", "candidate": "{text}"}


class Debate(Select):
    """A strategy of an operator's own, which may read a template of its own."""

    name: Literal["debate"] = "debate"  # type: ignore[assignment]


def settings(templates: Any, *strategies: str) -> ControllerSettings:
    return ControllerSettings.model_validate({"templates": templates, "strategies": strategies})


def test_a_file_replaces_the_templates_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "templates.yaml"
    file.write_text(yaml.safe_dump({"fuse": OWN, "debate": OWN}))
    debate = f"{__name__}:Debate"
    read = settings(str(file), debate)
    assert read == settings({"fuse": OWN, "debate": OWN}, debate)
    assert read == ControllerSettings.model_validate(read.model_dump()), "the texts travel, not the path"
    own = Template.model_validate(OWN)
    assert read.known_templates == {**TEMPLATES, "fuse": own, "debate": own}
    assert settings({}).known_templates == TEMPLATES


def test_the_example_of_the_docs_is_one() -> None:
    example = (ROOT / "docs" / "reading.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    select = settings(yaml.safe_load(example)["args"]["controller"]["templates"]).known_templates["select"]
    assert select.text("Why?", ["so", "because"]).splitlines() == [
        *("Why?", "", "These are answers to it:", "Answer 1: so", "", "Answer 2: because", ""),
        *("Which one is the best? End with exactly:", "Best: number"),
    ]
    assert select.chosen("Best: 2", 2) == 1


@pytest.mark.parametrize(
    ("templates", "path", "fault"),
    [
        ({"fuse": {"prompt": "{question} {note}"}}, ("templates", "fuse", "prompt"), "{candidates} once, not 0 times"),
        ({"fuse": OWN | {"promt": "x"}}, ("templates", "fuse", "promt"), "Extra inputs are not permitted"),
        ({"debate": OWN}, ("templates",), "debate: no strategy reads it; there are: select, fuse, refine, critique"),
        ({"select": OWN}, ("templates",), "select.choice: must be the text before the number"),
        ("/nowhere/templates.yaml", ("templates",), "cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_template_is_refused_with_its_path(templates: Any, path: tuple[str, ...], fault: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(templates)
    [error] = refused.value.errors()
    assert error["loc"] == path
    assert fault in error["msg"]


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "templates.yaml"
    file.write_text("select: [")
    with pytest.raises(ValidationError, match="is no YAML"):
        settings(str(file))
