"""Requests: the part of OpenAI's chat completions that a search understands, and Banyan's own."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from deployments.http.body import TAG, validated
from deployments.http.errors import BadRequest

IGNORED = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"})
"""Fields that change nothing about an answer: accepted whatever they say."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields of OpenAI's API that a search does not support, with the values (besides null) that ask for nothing."""


class Body(BaseModel):
    """Base of requests: no coercion ("16" is not 16, true is not 1), no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TextPart(Body):
    type: Literal["text"]
    text: str


def _kind(content: Any) -> str:
    return f"{TAG}parts" if isinstance(content, list) else f"{TAG}text"


Content = Annotated[
    Annotated[str, Tag(f"{TAG}text")] | Annotated[list[TextPart], Field(min_length=1), Tag(f"{TAG}parts")],
    Discriminator(_kind),
]


class Message(Body):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: Content
    name: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Body):
    """``POST /v1/chat/completions`` and ``POST /v1/search``."""

    model: str
    messages: list[Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, description="Longest path that may answer, tokens.")
    max_completion_tokens: int | None = Field(None, ge=1, description="Tokens the whole search may generate.")
    search: dict[str, Any] | None = None

    @classmethod
    def parse(cls, body: dict[str, Any]) -> "ChatRequest":
        """
        Raises:
            BadRequest: with the path of the first field that is wrong or not supported.
        """
        if body.get("n") not in (None, 1) or isinstance(body.get("n"), bool):
            message = "n must be 1: a request has one answer. How many paths are grown for it is search.n"
            raise BadRequest(message, "n", "unsupported_value")
        for field, neutral in NEUTRAL.items():
            if body.get(field) is not None and body[field] not in neutral:
                raise BadRequest(f"{field} is not supported", field, "unsupported_parameter")
        known = {key: value for key, value in body.items() if key not in IGNORED and key not in NEUTRAL and key != "n"}
        request = validated(cls, known)
        if request.messages[-1].role != "user":
            last = len(request.messages) - 1
            raise BadRequest("the last message must be the user's", f"messages.{last}.role")
        for place, message_ in enumerate(request.messages):
            if not message_.text.strip() and message_.role == "user":
                raise BadRequest("the message is empty", f"messages.{place}.content")
        if request.stream_options is not None and not request.stream:
            raise BadRequest("stream_options is for streamed replies only", "stream_options")
        return request

    @property
    def question(self) -> str:
        """What the process reward model judges the steps against: the user's last turn."""
        return self.messages[-1].text


class ScoreBody(Body):
    """``POST /v1/score``: one reasoning path."""

    model: str | None = None
    question: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
