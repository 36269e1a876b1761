"""An engine's tokenizer, as every process of Banyan loads it: from where the settings say, with their chat template."""

from typing import TYPE_CHECKING

from deployments.engines.encoding import ChatEncoder
from deployments.engines.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE = "What is 1 + 1?"


def load_tokenizer(settings: EngineSettings, local_files_only: bool = False) -> "PreTrainedTokenizerBase":
    """The tokenizer that the engine of these settings uses, loaded without vLLM.

    Args:
        local_files_only: whether a hub id is looked up in this machine's cache alone.

    Raises:
        ValueError: there is none, or it is refused by `configured`.
    """
    from transformers import AutoTokenizer

    source = settings.tokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            local_files_only=local_files_only,
        )
    except Exception as error:  # a malformed file raises whatever its reader does
        raise ValueError(f"the tokenizer of {source.path} cannot be loaded: {error}") from error
    return configured(tokenizer, settings)


def configured(tokenizer: "PreTrainedTokenizerBase", settings: EngineSettings) -> "PreTrainedTokenizerBase":
    """The tokenizer with the chat template of ``settings.chat_template``, if there is one.

    Raises:
        ValueError: it has no vocabulary, as transformers makes one for a model without the files of a tokenizer; or the
            file of the chat template cannot be read.
    """
    if len(set(tokenizer.encode(SAMPLE, add_special_tokens=False))) < 2:
        raise ValueError(
            f"{settings.tokenizer.path} has no tokenizer: add its files, or name its directory or hub id in "
            "engine_args.tokenizer"
        )
    if (file := settings.chat_template_file) is not None:
        try:
            tokenizer.chat_template = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"chat_template {file} cannot be read: {error}") from error
    return tokenizer


def require_chat_template(encoder: ChatEncoder, settings: EngineSettings) -> None:
    """Raises ValueError when the engine's tokenizer has no chat template."""
    if not encoder.has_chat_template:
        raise ValueError(
            f"{settings.model} has no chat template, neither in chat_template.jinja nor in tokenizer_config.json: a "
            "model without one was not trained on chats. chat_template names a file with one"
        )
