"""Tools of a request: the functions that a model may call, and the JSON schema of an answer that must be a call."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from deployments.admission.errors import BadRequest
from deployments.http.json_body import TAG, Body, Path, Unread
from deployments.http.json_schema.checked_schema import CheckedSchema, checked_schema

MAX_TOOLS = 128
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
"""OpenAI's limits of tools and of a function's name."""
Json = dict[str, Any]


class Function(Body):
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: Json | None = Field(None, description="JSON schema of the arguments. null: there are none.")
    strict: Unread = None

    @property
    def schema_of_arguments(self) -> Json:
        return self.parameters or {"type": "object", "properties": {}}

    @property
    def shown(self) -> Json:
        """As the chat template gets it."""
        described = {} if self.description is None else {"description": self.description}
        return {"name": self.name, **described, "parameters": self.schema_of_arguments}


class Tool(Body):
    type: Literal["function"]
    function: Function

    @property
    def shown(self) -> Json:
        """As the chat template gets it."""
        return {"type": "function", "function": self.function.shown}


class ChosenFunction(Body):
    name: str


class NamedChoice(Body):
    type: Literal["function"]
    function: ChosenFunction


def kind_of_choice(choice: Any) -> str:
    return f"{TAG}named" if isinstance(choice, dict) else f"{TAG}mode"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(f"{TAG}mode")] | Annotated[NamedChoice, Tag(f"{TAG}named")],
    Discriminator(kind_of_choice),
]


class CalledFunction(Body):
    name: str = Field(min_length=1, max_length=256)
    arguments: str = Field(description="JSON, as the model wrote it.")

    @property
    def shown(self) -> Json:
        """As chat templates read it: with the arguments as an object, or as they are if they are none."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments if isinstance(arguments, dict) else self.arguments}


class MessageCall(Body):
    """A call that an earlier reply had."""

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Unread = None

    @property
    def shown(self) -> Json:
        """As the chat template gets it."""
        return {"id": self.id, "type": "function", "function": self.function.shown}


def check_choice(tools: Sequence[Tool], choice: "Literal['none', 'auto', 'required'] | NamedChoice | None") -> None:
    """Checks the tools against each other and the choice against the tools.

    Raises:
        BadRequest: two tools have one name, or there is no tool that must be called.
    """
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in names:
            path = f"tools.{index}.function.name"
            raise BadRequest(f"{path}: an earlier tool is also named {tool.function.name}", path)
        names.add(tool.function.name)
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        path = "tool_choice.function.name"
        raise BadRequest(f"{path}: there is no tool {choice.function.name[:64]!r}", path)
    if choice == "required" and not names:
        raise BadRequest("tool_choice requires a call, but tools is empty", "tool_choice")


def forced_schema(
    tools: Sequence[Tool], choice: "Literal['none', 'auto', 'required'] | NamedChoice | None", parallel: bool
) -> CheckedSchema | None:
    """Returns the JSON schema of an answer that must be a call; None if it need not be one.

    As vLLM writes it: the arguments of the function that is named, or for ``required`` a list of calls.

    Raises:
        BadRequest: no arguments can be held to the schema of a function; names its path.
    """
    if not isinstance(choice, NamedChoice):
        if choice != "required":
            return None
        called = list(enumerate(tools))
    else:
        called = [(index, tool) for index, tool in enumerate(tools) if tool.function.name == choice.function.name]
    definitions: Json = {}
    unheld: dict[str, None] = {}
    arguments: dict[str, Json] = {}
    for index, tool in called:
        path: Path = ("tools", index, "function", "parameters")
        checked = checked_schema({"type": "object", **tool.function.schema_of_arguments}, path)
        unheld |= dict.fromkeys(checked.unheld)
        schema = _with_prefix(json.loads(checked.text), f"{index}.")
        definitions |= {f"{index}.{name}": each for name, each in schema.pop("$defs", {}).items()}
        if '"$ref":"#"' in checked.text:
            definitions[f"{index}."] = schema
        arguments[tool.function.name] = schema
    if isinstance(choice, NamedChoice):
        [schema] = arguments.values()
    else:
        calls = [_call(name, schema) for name, schema in arguments.items()]
        items = calls[0] if len(calls) == 1 else {"anyOf": calls}
        schema = {"type": "array", "items": items, "minItems": 1, **({} if parallel else {"maxItems": 1})}
    text = json.dumps(schema | ({"$defs": definitions} if definitions else {}), separators=(",", ":"))
    return CheckedSchema(text, tuple(unheld))


def _call(name: str, parameters: Json) -> Json:
    return {
        "type": "object",
        "properties": {"name": {"enum": [name]}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _with_prefix(schema: Any, prefix: str) -> Any:
    """The schema with ``prefix`` before the name of every definition that it refers to. It refers to itself by the
    prefix alone."""
    if isinstance(schema, list):
        return [_with_prefix(each, prefix) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/$defs/{prefix}{value.removeprefix('#').removeprefix('/$defs/')}"
        if key == "$ref" and isinstance(value, str)
        else _with_prefix(value, prefix)
        for key, value in schema.items()
    }
