"""The settings ``prm.card`` and ``controller.reader_card``: cards, read from their files where settings are checked.

So the card itself, not its path, reaches the controllers, which may be on machines without the file.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from deployments.engines.settings import EMBEDDED_MODELS
from search.reader_card import ReaderCard
from search.reward_card import Record, RewardCard

CARD_FILE = "card.json"
"""The card's name in the directory of a model."""
MAX_BYTES = 1 << 16
AnyCard = TypeVar("AnyCard", bound=Record)


def read_card(path: Path) -> RewardCard:
    """The card of a reward model in a file, or in a model's directory.

    Raises:
        ValueError: there is none, or it is no card of a known version.
    """
    return _card_in(path / CARD_FILE if path.is_dir() else path, RewardCard, "check-prm")


def _card_in(file: Path, kind: type[AnyCard], command: str) -> AnyCard:
    """The card in a file that a command of ``banyan`` writes.

    Raises:
        ValueError: there is none, or it is no card of a known version.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{file} is no card: it has more than {MAX_BYTES} bytes")
        return kind.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; `banyan {command} --card` writes one") from error
    except ValidationError as error:
        fault = error.errors()[0]
        at = ".".join(map(str, fault["loc"])) or "the file"
        raise ValueError(f"{file} is no card: {at}: {fault['msg']}") from None


def _as_card(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    path = EMBEDDED_MODELS / given.removeprefix("embedded:") if given.startswith("embedded:") else Path(given)
    return read_card(path.expanduser())


def _as_reader_card(given: Any) -> Any:
    return _card_in(Path(given).expanduser(), ReaderCard, "check-select") if isinstance(given, str) else given


CARD_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]})
CardSetting = Annotated[
    RewardCard | None,
    BeforeValidator(_as_card),
    CARD_SCHEMA,
    Field(
        description="Card of this reward model and generator, as `banyan check-prm --card` writes it: a file, a "
        "model's directory with a card.json, or the card itself. It decides how a vote over whole solutions uses the "
        "rewards ([rewards.md](rewards.md#what-is-it-worth-in-a-vote))."
    ),
]
"""The type of ``card`` in the settings of every family."""
ReaderCardSetting = Annotated[
    ReaderCard | None,
    BeforeValidator(_as_reader_card),
    CARD_SCHEMA,
    Field(
        description="What it is worth that the generator reads its own solutions, as `banyan check-select --card` "
        "writes it: a file, or the card itself. It decides where a vote counts as contested "
        "([reading.md](reading.md#is-it-worth-it))."
    ),
]
"""The type of ``reader_card`` in the controller's settings."""
