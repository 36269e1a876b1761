"""Settings of a reward model behind a URL."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, SerializeAsAny, WrapValidator, model_validator

from deployments.backends.settings import BackendSettings
from deployments.engines.rewards import RewardSettings, parse_prm
from deployments.engines.rewards.card_file import CardSetting
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.rewards.generative import VerifierSettings
from deployments.engines.rewards.heads import Head
from deployments.engines.settings import ReplicaSettings


class UrlPrmSettings(BackendSettings):
    """A reward model that another server serves, or a model that judges ([rewards.md](rewards.md#behind-a-url))."""

    family: Literal["url"] = "url"
    model: str | None = Field(
        None, min_length=1, description="The server's name of the model. Unset: the first that it has."
    )
    endpoint: Literal["pooling", "score", "chat"] = Field(
        "pooling",
        description="`pooling`: vLLM's `/pooling`, the numbers of a head at the tokens where `format` reads them. "
        "`score`: vLLM's `/score`, of the question and the path. `chat`: critiques by `/v1/chat/completions`, with the "
        "template of the generative family in `format`.",
    )
    format: Annotated[SerializeAsAny[RewardModelSettings], WrapValidator(lambda given, _: parse_prm(given))] | None = (
        Field(
            None,
            description="The reward family whose texts are sent, with its settings: those of `prm`. Of its `model` "
            "only the tokenizer is read, for `pooling`; settings of an engine have no effect. Not with `score`.",
        )
    )
    card: CardSetting = None
    replicas: ReplicaSettings = ReplicaSettings()
    max_calls: int = Field(64, ge=1, le=4096, description="Maximum concurrent calls at a URL, and of a replica.")

    @property
    def max_num_seqs(self) -> int:
        """Maximum concurrent calls."""
        return self.max_calls

    @property
    def engines(self) -> dict[str, RewardModelSettings]:
        """None: see `RewardModelSettings.engines`."""
        return {}

    @model_validator(mode="after")
    def _format_suits_the_endpoint(self) -> Self:
        family = self.format
        if self.endpoint == "score" and family is not None:
            raise ValueError("format has no effect with the endpoint score, which gets texts")
        if self.endpoint == "pooling" and not _is_plain_head(family):
            raise ValueError("the endpoint pooling needs a format whose family reads one number or classes at tokens")
        if self.endpoint == "chat" and not (
            isinstance(family, VerifierSettings) and family.verifier_template.cue is not None
        ):
            raise ValueError("the endpoint chat needs a format of a generative family whose template has a cue")
        return self


def _is_plain_head(family: RewardSettings | None) -> bool:
    reader = family.reader if isinstance(family, RewardModelSettings) else None
    return reader is not None and issubclass(reader, Head) and reader.rewards_of is Head.rewards_of


def parse_any_prm(given: Any) -> RewardSettings | UrlPrmSettings:
    """Validates the settings of a reward model: of the family ``url`` where one is named, of any other else.

    Raises:
        ValidationError: as `parse_prm`.
    """
    if isinstance(given, UrlPrmSettings):
        return given
    if isinstance(given, Mapping) and (given.get("family") == "url" or {"url", "urls"} & given.keys()):
        return UrlPrmSettings.model_validate(given)
    return parse_prm(given)


AnyPrmSettings: TypeAlias = Annotated[
    SerializeAsAny[RewardSettings | UrlPrmSettings], WrapValidator(lambda given, _: parse_any_prm(given))
]
"""The type of ``prm`` in the settings tree."""
