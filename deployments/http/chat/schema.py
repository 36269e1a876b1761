"""Request bodies: the part of OpenAI's chat completions that a search supports, and Banyan's own requests."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from deployments.admission.errors import BadRequest
from deployments.admission.service_tier import ServiceTier
from deployments.config import Effort, UnknownFields
from deployments.http.chat.tools import MAX_TOOLS, MessageCall, Tool, ToolChoice, check_choice, forced_schema
from deployments.http.fields import CHAT_FIELDS, COMPLETION_FIELDS, EMPTY, parsed
from deployments.http.json_body import TAG, Body, Unread
from deployments.http.json_schema.checked_schema import CheckedSchema, checked_schema
from deployments.http.progress import without_progress
from search.answers.thoughts import Parts, parts
from search.settings import StopTexts
from search.token_beam import MAX_PROMPTS, MAX_WIDTH


def _without_empty(given: Any) -> Any:
    texts = [given] if isinstance(given, str) else given
    return [text for text in texts if text != ""] if isinstance(texts, list) else texts


Stop = Annotated[StopTexts, BeforeValidator(_without_empty)]
"""Empty texts are left out: some clients send ``[""]`` for none."""
MAX_CHOICES = 128
"""OpenAI's limit of ``n``."""
MAX_TOP_K = 1 << 20
MAX_TEMPLATE_KWARGS = 32


MAX_METADATA = 16
"""OpenAI's limits of ``metadata``: pairs, here, and characters of names and of texts."""
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class Part(Body):
    """A piece of a message."""

    type: str
    text: str


class TextPart(Part):
    type: Literal["text"]


def text_of(content: str | Sequence[Part] | None) -> str:
    """Returns the text of a message. As in vLLM its parts are lines: no word runs into the next part."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or () if part.text)


def _kind(content: Any) -> str:
    return f"{TAG}parts" if isinstance(content, list) else f"{TAG}text"


Content = Annotated[
    Annotated[str, Tag(f"{TAG}text")] | Annotated[list[TextPart], Field(fail_fast=True), Tag(f"{TAG}parts")],
    Discriminator(_kind),
]


def _as_in_templates(role: str) -> str:
    """Returns ``system`` for ``developer``: OpenAI renamed the role, but chat templates know only the old name."""
    return "system" if role == "developer" else role


Role = Annotated[Literal["system", "developer", "user", "assistant"], AfterValidator(_as_in_templates)]
ChatRole = Annotated[Literal["system", "developer", "user", "assistant", "tool"], AfterValidator(_as_in_templates)]


def _check_empty(value: Any) -> None:
    if value not in EMPTY:
        raise PydanticCustomError("unsupported_parameter", "not supported in a message, unless null or empty")


def _is_scalar(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise PydanticCustomError("scalar_type", "Input should be a text, a number, true, false or null")
    return value


Scalar = Annotated[Any, AfterValidator(_is_scalar), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]
MustBeEmpty = Annotated[Any, AfterValidator(_check_empty)]
"""A field of a message that clients send back as they got it. Only null and empty values are accepted."""


Returned = Annotated[
    Any,
    Field(description="The thinking of an earlier reply, for chat templates that write it; progress is left out."),
]
_FOLDED = re.compile(r'\A\s*<details type="reasoning"[^>]*>.*?</details>\s*', re.DOTALL)
"""Reasoning as Open WebUI stores it in a message."""


class Message(Body):
    """One turn of the conversation; also one that an earlier reply had, with all that OpenAI's clients keep of it."""

    role: ChatRole
    content: Content | None = Field(
        None, description="null and [] mean an empty message. Only a message with tool_calls may lack it."
    )
    name: str | None = None
    reasoning: Returned = None
    reasoning_content: Returned = None
    annotations: MustBeEmpty = None
    audio: MustBeEmpty = None
    function_call: MustBeEmpty = None
    refusal: MustBeEmpty = None
    tool_calls: list[MessageCall] | None = Field(None, description="Calls that the assistant has made.")
    tool_call_id: str | None = Field(None, description="With role tool: id of the call whose result this is.")

    @cached_property
    def text(self) -> str:
        text = text_of(self.content)
        return _FOLDED.sub("", text, 1) if self.role == "assistant" else text

    @property
    def content_alone(self) -> str:
        """The text, that of the assistant without the thinking with which it begins."""
        return self.text[self._parts.start :]

    @property
    def shown(self) -> tuple[str, str]:
        """Content and thinking as the chat template gets them. The template itself finds thinking in the content; only
        if a client took progress for thinking, or sent thinking beside the content, there is none in it."""
        thinking = self._parts.thinking
        if self.role == "assistant":
            fields = (self.reasoning_content, self.reasoning)
            sent = next((each for each in fields if isinstance(each, str) and each.strip()), thinking)
            if (sent := without_progress(sent)) != thinking:
                return self.content_alone, sent
        return self.text, ""

    @cached_property
    def _parts(self) -> Parts:
        return parts(self.text) if self.role == "assistant" else Parts("", 0)


class AnswerSchema(Body):
    """The ``json_schema`` of a response format."""

    name: str = Field(max_length=64)
    schema_: dict[str, Any] = Field(alias="schema")
    description: Unread = None
    strict: Unread = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None
    schema_: None = Field(None, alias="schema", description="Must not be set: the schema belongs in json_schema.")

    @cached_property
    def checked_schema(self) -> CheckedSchema:
        """The JSON schema of the answer; its text is empty for any text.

        Raises:
            BadRequest: there is none although there should be, or no answer can be held to it.
        """
        path = "response_format.json_schema"
        if self.type == "json_schema":
            if self.json_schema is None:
                raise BadRequest(f"missing field: {path}", path, "missing_required_parameter")
            return checked_schema(self.json_schema.schema_, ("response_format", "json_schema", "schema"))
        if self.json_schema is not None:
            raise BadRequest(f"{path} is only for the type json_schema, not {self.type}", path)
        return CheckedSchema('{"type":"object"}' if self.type == "json_object" else "")


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: Unread = None


class ChatRequest(Body):
    """``POST /v1/chat/completions`` and ``POST /v1/search``."""

    model: str
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    stop: Stop | None = Field(
        None, strict=False, description="One to four stop strings: the answer's text ends before the first match."
    )
    max_tokens: int | None = Field(None, ge=1, description="Maximum tokens of a path.")
    max_completion_tokens: int | None = Field(None, ge=1, description="Token budget of the whole search.")
    n: int | None = Field(
        None,
        ge=1,
        le=MAX_CHOICES,
        description="Number of choices: the best distinct answers. Fewer are returned if the search found fewer.",
    )
    top_k: int | None = Field(None, ge=-1, le=MAX_TOP_K, description="0 and -1 turn top-k sampling off.")
    min_p: float | None = Field(None, ge=0, le=1)
    logprobs: bool | None = Field(None, description="Return the log-probabilities of the answer's tokens.")
    top_logprobs: int | None = Field(
        None, ge=0, le=1, description="Only 0: alternatives to the tokens are not reported."
    )
    reasoning_effort: Effort | None = Field(
        None, description="Name of one of the operator's searches (controller.efforts)."
    )
    service_tier: ServiceTier | None = None
    store: bool | None = Field(None, description="Whether events and reply are stored for GET /v1/searches/{id}.")
    chat_template_kwargs: dict[str, Scalar] | None = Field(
        None,
        max_length=MAX_TEMPLATE_KWARGS,
        description="Arguments for the model's chat template, which may ignore them.",
    )
    continue_final_message: bool | None = Field(
        None,
        description="Continue the last message, which must be the assistant's: its text is the beginning of every "
        "path, and the reply has what comes after it.",
    )
    add_generation_prompt: bool | None = Field(
        None, description="As in vLLM: true or unset; with continue_final_message, false or unset."
    )
    response_format: ResponseFormat | None = Field(
        None, description="Format of the answer, for strategies that write whole solutions."
    )
    tools: list[Tool] | None = Field(
        None, max_length=MAX_TOOLS, description="Functions that the model may ask the client to call."
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="auto (the default); required, or one function: the reply is a call of it; none: the prompt has no "
        "tools.",
    )
    parallel_tool_calls: bool | None = Field(None, description="With false, the reply has at most one call.")
    search: dict[str, Any] | None = None

    @classmethod
    def parse(cls, body: dict[str, Any], unknown: UnknownFields = "ignore") -> "ChatRequest":
        """Validates a body.

        Raises:
            BadRequest: a field is invalid or not supported; names the path of the first one.
        """
        request = parsed(cls, body, CHAT_FIELDS, unknown)
        request._check_ending()
        request._check_tools()
        return request

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []

    @cached_property
    def answer_schema(self) -> CheckedSchema:
        """The JSON schema of the answer; its text is empty for any text.

        Raises:
            BadRequest: no answer can be held to it.
        """
        parallel = self.parallel_tool_calls is not False
        if (forced := forced_schema(self.offered, self.tool_choice, parallel)) is not None:
            return forced
        return self.response_format.checked_schema if self.response_format else CheckedSchema("")

    @property
    def conversation(self) -> list[Message]:
        """The messages before the answer. If none is the user's, the last one is the question, and the user's here."""
        messages = self.messages[:-1] if self.continue_final_message else self.messages
        if messages[-1].role == "tool" or any(message.role == "user" for message in messages):
            return messages
        return [*messages[:-1], messages[-1].model_copy(update={"role": "user"})]

    @property
    def prefill(self) -> str:
        """The given beginning of the answer; empty if there is none."""
        return self.messages[-1].text if self.continue_final_message else ""

    def _check_ending(self) -> None:
        """Checks the last message, or the last two if the last is the beginning of the answer.

        Raises:
            BadRequest: the last message before the answer is empty or the assistant's, or there is no beginning of an
                answer.
        """
        last = len(self.messages) - 1
        if self.continue_final_message:
            self._check_beginning(last)
            last -= 1
        elif self.messages[last].role == "assistant":
            message = "the last message is the assistant's; continue_final_message of a chat continues it"
            raise BadRequest(message, f"messages.{last}.role")
        elif self.add_generation_prompt is False:
            raise BadRequest(
                "add_generation_prompt may be false only with continue_final_message", "add_generation_prompt"
            )
        if not self.messages[last].text.strip() and self.messages[last].role != "tool":
            raise BadRequest("the message is empty", f"messages.{last}.content")

    def _check_tools(self) -> None:
        """Checks the tool calls and results in the messages, and ``tool_choice`` against the tools.

        Raises:
            BadRequest: a call or a result is not where it belongs, a tool is named twice, or no tool can be called.
        """
        known: set[str] = set()
        for index, message in enumerate(self.messages):
            path = f"messages.{index}"
            if message.content is None and "content" not in message.model_fields_set and not message.tool_calls:
                raise BadRequest(f"missing field: {path}.content", f"{path}.content", "missing_required_parameter")
            if message.tool_calls and message.role != "assistant":
                raise BadRequest(f"{path}.tool_calls: only the assistant calls tools", f"{path}.tool_calls")
            if message.role == "tool" and message.tool_call_id not in known:
                path = f"{path}.tool_call_id"
                if message.tool_call_id is None:
                    raise BadRequest(f"missing field: {path}", path, "missing_required_parameter")
                raise BadRequest(f"{path} is not the id of a tool call in an earlier message", path)
            if message.role != "tool" and message.tool_call_id:
                raise BadRequest(
                    f"{path}.tool_call_id: only messages of the role tool have one", f"{path}.tool_call_id"
                )
            own: set[str] = set()
            for place, call in enumerate(message.tool_calls or ()):
                if call.id in own:
                    path = f"{path}.tool_calls.{place}.id"
                    raise BadRequest(f"{path}: an earlier call of the message has the same id", path)
                own.add(call.id)
            known |= own
        check_choice(self.tools or (), self.tool_choice)
        if self.offered and self.continue_final_message:
            raise BadRequest("continue_final_message is not supported with tools", "continue_final_message")
        if self.offered and self.response_format is not None and self.response_format.type != "text":
            raise BadRequest(
                "response_format cannot be combined with tools, unless tool_choice is none", "response_format"
            )

    def _check_beginning(self, last: int) -> None:
        """Checks the message that is continued, and the role of the one before it.

        Raises:
            BadRequest: there is no beginning of an answer, or nothing that it answers.
        """
        if self.add_generation_prompt:
            raise BadRequest("add_generation_prompt must be false with continue_final_message", "add_generation_prompt")
        if self.messages[last].role != "assistant":
            raise BadRequest("the message to be continued must be the assistant's", f"messages.{last}.role")
        if not self.prefill.strip():
            raise BadRequest("the message to be continued is empty", f"messages.{last}.content")
        if not last or self.messages[last - 1].role == "assistant":
            before = f"messages.{max(0, last - 1)}.role"
            raise BadRequest("the message before the one to be continued must not be the assistant's", before)
        if self.response_format is not None and self.response_format.type != "text":
            raise BadRequest("response_format cannot be combined with continue_final_message", "response_format")


class CompletionBody(Body):
    """``POST /v1/completions``: token-level beam search, in the words of vLLM's users."""

    model: str
    prompt: Any = Field(description="A text, a list of token ids, or a list of either.")
    use_beam_search: Literal[True] = Field(
        description="Must be true: this route runs token-level beam search; searches over steps are at "
        "/v1/chat/completions."
    )
    n: int = Field(1, ge=1, le=MAX_WIDTH, description="Sequences returned per prompt.")
    best_of: int | None = Field(None, ge=1, le=MAX_WIDTH, description="Beam width, at least n. Unset: n.")
    max_tokens: int = Field(16, ge=1, le=131_072)
    temperature: float | None = Field(None, ge=0, le=0, description="Only 0: nothing is sampled.")
    length_penalty: float = Field(1.0, ge=-10, le=10, strict=False)
    ignore_eos: bool = False
    skip_reading_prefix_cache: bool | None = None
    concurrency_limit: int | None = Field(
        None, description="Maximum number of prompts that are processed concurrently."
    )
    service_tier: ServiceTier | None = None

    @classmethod
    def parse(cls, body: dict[str, Any], unknown: UnknownFields = "ignore") -> "CompletionBody":
        """Validates a body.

        Raises:
            BadRequest: a field is invalid or not supported; names the path of the first one.
        """
        request = parsed(cls, body, COMPLETION_FIELDS, unknown)
        if request.best_of is not None and request.best_of < request.n:
            raise BadRequest(f"best_of must be at least n = {request.n}, not {request.best_of}", "best_of")
        return request

    def prompts(self) -> list[tuple[str, str | list[int]]]:
        """Returns every prompt with its path.

        Raises:
            BadRequest: there is no prompt, there are too many, or one is neither text nor token ids.
        """
        if isinstance(self.prompt, str) or _are_ids(self.prompt):
            given = [("prompt", self.prompt)]
        elif isinstance(self.prompt, list):
            given = [(f"prompt.{index}", each) for index, each in enumerate(self.prompt)]
        else:
            given = []
        if not 1 <= len(given) <= MAX_PROMPTS:
            raise BadRequest(f"prompt must be a text, token ids, or a list of 1 to {MAX_PROMPTS} of these", "prompt")
        for path, each in given:
            if not each or not (isinstance(each, str) or _are_ids(each)):
                raise BadRequest(f"{path} must be a text or a list of token ids, and not empty", path)
        return given


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


class ScoreBody(Body):
    """``POST /v1/score``: one reasoning path."""

    model: str | None = Field(
        None, description="The served model, which wrote the steps. The reward model has no name of its own."
    )
    question: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1, fail_fast=True)
    service_tier: ServiceTier | None = None
