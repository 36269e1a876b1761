"""Checks across settings, made when the application is built, before anything starts.

Checks that read a model's files need them on this machine. Where they are not, the engine refuses at its start.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.backends.settings import UrlGeneratorSettings
from deployments.config import AppConfig, PromptSettings
from deployments.engines.encoding import ChatEncoder
from deployments.engines.errors import EngineStartError
from deployments.engines.reasoning import marks_of
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.settings import EngineSettings
from deployments.engines.tokenizers import load_tokenizer, require_chat_template
from deployments.engines.weights import check_weights
from deployments.engines.yaml_values import as_meant
from deployments.startup.model_files import has_tokenizer, longest_context, model_directories, token_ratio

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION, OTHER_QUESTION = "What is 1 + 1?", "Name a prime number."
STEPS = ("1 + 1 = 2\n\n", "The answer is 2.\n\n")


def check_settings(config: AppConfig) -> None:
    """Checks the settings against each other and against their models.

    Raises:
        ValueError: settings contradict each other or their models; one line for each problem, with its path.
    """
    checks = (_context, _shared_device, _weights)
    problems = [
        problem for path, engine in config.engines.items() for check in checks for problem in check(path, engine)
    ]
    if isinstance(config.generator, UrlGeneratorSettings):
        problems += _nothing_needs_an_engine(config)
    else:
        problems += [problem for path in config.prm.engines for problem in _whole_paths_are_read(path, config)]
        problems += [
            *_thinking_is_found(config),
            *_rewards_are_exact(config),
            *_whole_blocks_are_kept(config),
            *_prompt_is_taken(config),
        ]
    problems += [problem for path, prm in config.prm.engines.items() for problem in _paths_are_read(f"prm{path}", prm)]
    if problems:
        raise ValueError("\n".join(problems))


def _nothing_needs_an_engine(config: AppConfig) -> Iterator[str]:
    """What only an engine of ours does is not asked of a backend."""
    if config.controller.tools.python is not None:
        yield "controller.tools.python: no programs are run within the answers of a backend (generator.url)"


def _context(path: str, engine: EngineSettings) -> Iterator[str]:
    """``max_model_len`` is within the model's context."""
    longest = longest_context(engine)
    if longest is not None and engine.max_model_len > longest:
        yield f"{path}.max_model_len: at most {longest}, the context of {engine.model}, not {engine.max_model_len}"


def _shared_device(path: str, engine: EngineSettings) -> Iterator[str]:
    """Engines that share a device limit their memory: Ray only counts the fractions, so vLLM needs the limit."""
    part = engine.replicas.num_gpus or 0
    if not 0 < part < 1:
        return
    if engine.kv_cache_memory_bytes is None:
        yield (
            f"{path}.kv_cache_memory_bytes: must be set with replicas.num_gpus {part:g}: vLLM would measure what is "
            "free on the device while the other engine takes its memory; `banyan plan` says how much"
        )
    utilization = as_meant(float, engine.engine_args.get("gpu_memory_utilization"))
    if isinstance(utilization, float | int) and utilization > part:
        yield (
            f"{path}.engine_args.gpu_memory_utilization: {utilization:g} of the device is more than "
            f"replicas.num_gpus reserves of it, {part:g}"
        )


def _weights(path: str, engine: EngineSettings) -> Iterator[str]:
    """The checkpoint has the weights that its model needs."""
    if _is_shipped(engine) or not all(map(_has_weights, model_directories(engine))):
        return
    try:
        check_weights(engine)
    except EngineStartError as error:
        yield f"{path}.model: {error}"


def _is_shipped(engine: EngineSettings) -> bool:
    """Whether its model is an embedded one as it is: the tests check these, and each start would wait for imports."""
    return engine.model.startswith("embedded:") and not (engine.chat_template or "tokenizer" in engine.engine_args)


def _has_weights(directory: Path | None) -> bool:
    return directory is not None and any(file.suffix in (".safetensors", ".bin") for file in directory.iterdir())


def _whole_paths_are_read(path: str, config: AppConfig) -> Iterator[str]:
    """A reward model's context holds every path that the generator's holds. Other paths would get neutral rewards.

    Prompts and paths are bounded in the generator's tokens. The reward model reads the question and the path, not the
    whole prompt. With the same tokenizer the token counts are equal; this is also assumed if the files are not on this
    machine. With different tokenizers the ratio is measured. The tokens that the format adds are normally taken from
    the longest path (`AppConfig.search_context`). They are added here where they are many: tokens for each step, or
    all of them if the reward model needs more tokens for the same text or writes critiques.

    Where the generator thinks, its context is for the thinking that no reward model reads: then the reward model's own
    context bounds the solutions.
    """
    prm, written = config.prm.engines[path], config.generator_engine.max_model_len
    steps = config.controller.limits.depth
    ratio = max(1.0, token_ratio(config.generator_engine, prm) or 1.0)
    added = prm.format_tokens(steps) if ratio > 1 or prm.critique_tokens else prm.tokens_per_step * steps
    needed = max(math.ceil(written * ratio) + added, prm.format_tokens(steps) + 1)
    reads_solutions = not config.controller.prm_reads_thinking and prm.max_model_len > prm.format_tokens(steps)
    if prm.max_model_len < needed and not (reads_solutions and _thinks(config)):
        reasons = [f"paths of up to {written} tokens (generator.max_model_len)"]
        if ratio > 1:
            reasons.append(f"{ratio:.2f} of this model's tokens for each of the generator's")
        if prm.tokens_per_step:
            reasons.append(f"{prm.tokens_per_step} more for each of {steps} steps (controller.limits.depth)")
        if prm.critique_tokens:
            reasons.append(f"{prm.critique_tokens} for a critique (prm{path}.max_tokens)")
        yield f"prm{path}.max_model_len: {prm.max_model_len} is less than the {needed} needed: {', '.join(reasons)}"


def _thinks(config: AppConfig) -> bool:
    """Whether the generator is known to think."""
    try:
        tokenizer = _tokenizer(config.generator_engine)
        return tokenizer is not None and marks_of(config.generator_engine.reasoning, tokenizer) is not None
    except ValueError:
        return False


def _thinking_is_found(config: AppConfig) -> Iterator[str]:
    """The generator's tokenizer has the marks of ``reasoning``."""
    if config.generator_engine.reasoning is None:
        return
    try:
        if (tokenizer := _tokenizer(config.generator_engine)) is not None:
            marks_of(config.generator_engine.reasoning, tokenizer)
    except ValueError as error:
        yield f"generator.reasoning: {error}"


def _rewards_are_exact(config: AppConfig) -> Iterator[str]:
    """Reward models are exact where the generator is: trees depend on both."""
    for path, prm in config.prm.engines.items():
        if config.generator_engine.exact and not prm.exact:
            yield f"prm{path}.exact: must be true with generator.exact: trees depend on rewards too"


def _whole_blocks_are_kept(config: AppConfig) -> Iterator[str]:
    """A chunk is a whole number of blocks; else LMCache ends the start of the engine."""
    block_size, chunk_size = config.generator_engine.expected_block_size, config.cache.chunk_size
    if config.cache.enabled and chunk_size % block_size:
        yield f"cache.chunk_size: must be a multiple of {block_size}, the generator's block size, not {chunk_size}"


def _prompt_is_taken(config: AppConfig) -> Iterator[str]:
    """The generator has a chat template. It takes a question behind the operator's prompt, and the context has room for
    one."""
    prompt = config.controller.prompt
    if _is_shipped(config.generator_engine) and prompt == PromptSettings():
        return
    where = "generator.model" if prompt == PromptSettings() else "controller.prompt"
    system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
    first, second = (
        [*system, *prompt.example_turns, {"role": "user", "content": text}] for text in (QUESTION, OTHER_QUESTION)
    )
    try:
        if (tokenizer := _tokenizer(config.generator_engine)) is None:
            return
        encoder = ChatEncoder(tokenizer)
        require_chat_template(encoder, config.generator_engine)
        tokens = encoder.encode_chat(first)
        if tokens == encoder.encode_chat(second):
            raise ValueError("the chat template makes the same prompt from every question")
    except ValueError as error:
        yield f"{where}: {error}"
    else:
        if prompt != PromptSettings() and len(tokens) >= config.search_context:
            yield f"{where}: {len(tokens)} tokens; the context of {config.search_context} leaves no room for more"


def _paths_are_read(path: str, prm: RewardModelSettings) -> Iterator[str]:
    """A reward model that reads a chat has a template, which takes the messages of its family."""
    if _is_shipped(prm) or not prm.reads_chat:
        return
    try:
        if (tokenizer := _tokenizer(prm)) is None:
            return
        require_chat_template(ChatEncoder(tokenizer), prm)
        prm.reader(prm, tokenizer).prompt_ids(QUESTION, STEPS)
    except (ValueError, EngineStartError) as error:
        yield f"{path}.model: {error}"


def _tokenizer(settings: EngineSettings) -> "PreTrainedTokenizerBase | None":
    """The engine's tokenizer, if all its files are on this machine.

    Raises:
        ValueError: it cannot be loaded, or the file of the chat template cannot be read.
    """
    if None in model_directories(settings) or not (has_tokenizer(settings) or _is_whole(settings)):
        return None
    return load_tokenizer(settings, local_files_only=True)


def _is_whole(settings: EngineSettings) -> bool:
    """Whether the directory of the tokenizer is a model's, or named for the tokenizer: it has no tokenizer then."""
    directory = Path(settings.tokenizer.path)
    return directory.is_dir() and ("tokenizer" in settings.engine_args or _has_weights(directory))
