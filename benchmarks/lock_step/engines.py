"""Generator and process reward model on vLLM's offline engines, both in this process, compiled.

Importing this module imports vLLM: set the process's environment and cores before.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vllm import LLM, PoolingParams, SamplingParams
from vllm.config import PoolerConfig
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from benchmarks.lock_step.beam_search import (
    BeamSearch,
    BeamSettings,
    ScoredBeam,
    ScoreRequest,
    StepRequest,
    WrittenStep,
    search_in_lock_step,
    weighted_vote,
)
from benchmarks.lock_step.worker import Question
from deployments.engines.arguments import CPU_BATCH_TOKENS
from deployments.engines.encoding import ChatEncoder
from deployments.engines.environment import CPU_KV_BYTES
from deployments.engines.rewards.step_head import StepHead, StepHeadSettings
from deployments.engines.settings import CPU_BLOCK_SIZE, GeneratorSettings
from deployments.engines.step_splitter import StepSplitter
from search.tree import StepEnd


class Solved(NamedTuple):
    """Answer and cost of one problem."""

    answer: str | None
    steps: int
    tokens: int
    """Generated tokens."""
    engine_calls: int
    """Calls to either engine that it had a part in."""
    prm_tokens: int
    """Tokens that the process reward model read."""


class Engines:
    """Both engines, and beam search on them."""

    def __init__(self, generator: str, prm: str, arguments: Mapping[str, dict[str, Any]]) -> None:
        """Starts the engines of two model directories. ``arguments``: engine arguments by role, ``generator`` and
        ``prm``, in place of those for a CPU."""
        generator_settings, prm_settings = GeneratorSettings(model=generator), StepHeadSettings(model=prm)
        self._generator = LLM(
            **{**_cpu_arguments(generator_settings.model_path), **arguments.get("generator", {})},
            runner="generate",
            enable_prefix_caching=True,
        )
        # A reward per token is needed, for which vLLM reads no cached prefix: caching blocks would be useless.
        self._prm = LLM(
            **{**_cpu_arguments(prm_settings.model_path), **arguments.get("prm", {})},
            runner="pooling",
            pooler_config=PoolerConfig(tok_pooling_type="ALL"),
            enable_prefix_caching=False,
        )
        tokenizer = self._generator.get_tokenizer()
        self._chat = ChatEncoder(tokenizer)
        eos = tokenizer.eos_token_id
        self._splitter = StepSplitter(tokenizer, generator_settings.step_delimiter, frozenset({eos}))
        self._step_head = StepHead(prm_settings, self._prm.get_tokenizer())

    def solve(
        self, questions: Sequence[Question], in_flight: int, settings: BeamSettings, context_tokens: int
    ) -> list[Solved]:
        """Searches problems, ``in_flight`` at a time in lock step. ``context_tokens``: most tokens of prompt and path
        together."""
        searches: list[BeamSearch] = []
        for question in questions:
            prompt = self._chat.encode_chat([{"role": "user", "content": question.text}])
            path_tokens = context_tokens - len(prompt)
            searches.append(BeamSearch(settings, question.text, prompt, path_tokens, question.seed))

        def write(requests: Sequence[StepRequest]) -> list[WrittenStep]:
            return self._write(requests, settings.temperature)

        search_in_lock_step(searches, in_flight, write, self._score)
        return [
            Solved(weighted_vote(each.pool), each.steps, each.tokens, 2 * each.iterations, each.prm_tokens)
            for each in searches
        ]

    def _write(self, requests: Sequence[StepRequest], temperature: float) -> list[WrittenStep]:
        """One step for each request, in one generator call."""
        outputs = self._generator.generate(
            [TokensPrompt(prompt_token_ids=list(request.token_ids)) for request in requests],
            [self._sampling_params(request, temperature) for request in requests],
            use_tqdm=False,
        )
        written: list[WrittenStep] = []
        for output in outputs:
            completion = output.outputs[0]
            step = self._splitter.step(completion.token_ids, cut_off=completion.finish_reason != "stop")
            written.append(WrittenStep(step.text, step.token_ids, step.end is not StepEnd.DELIMITER))
        return written

    def _sampling_params(self, request: StepRequest, temperature: float) -> SamplingParams:
        stop = self._splitter.stop
        params = SamplingParams(
            temperature=temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            # Text is compared only where token ids do not suffice, since that needs detokenization.
            stop_token_ids=list(stop.token_ids),
            stop=list(stop.strings),
            include_stop_str_in_output=bool(stop.strings),
            detokenize=bool(stop.strings),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        params.skip_clone = True  # every request has its own here already
        return params

    def _score(self, beams: Sequence[ScoreRequest]) -> list[ScoredBeam]:
        """One reward per step of each beam, all beams read whole in one call."""
        encoded = [self._step_head.encode(beam.question, beam.steps) for beam in beams]
        outputs = self._prm.encode(
            [TokensPrompt(prompt_token_ids=token_ids) for token_ids, _ in encoded],
            PoolingParams(task="token_classify", use_activation=False),
            pooling_task="token_classify",
            use_tqdm=False,
        )
        return [
            ScoredBeam(self._step_head.rewards_of(output.outputs.data[tags].double()).tolist(), len(token_ids))
            for output, (token_ids, tags) in zip(outputs, encoded, strict=True)
        ]


def _cpu_arguments(model: str) -> dict[str, Any]:
    """Engine arguments on a CPU as in ``deployments.engines.arguments``, but compiled."""
    return {
        "model": model,
        "dtype": "float32",
        "max_model_len": GeneratorSettings().max_model_len,
        "max_num_seqs": GeneratorSettings().max_num_seqs,
        "block_size": CPU_BLOCK_SIZE,
        "kv_cache_memory_bytes": CPU_KV_BYTES,
        "enforce_eager": False,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": CPU_BATCH_TOKENS,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
