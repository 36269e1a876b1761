"""The two embedded models, loaded once, and what is remembered of one problem."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM

from benchmarks.memoized.generator import Language, Logits, MemoizedGenerator
from benchmarks.memoized.paths import PagedTrunk, PathReader
from benchmarks.memoized.scorer import MemoizedScorer
from deployments.config import AppConfig
from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.step_head import StepHead, StepHeadSettings
from deployments.engines.step_splitter import StepSplitter
from scripts.embedded.process_reward_model import load_prm
from search.answers.equivalence import AnswerMatcher
from search.run.environment import SearchEnvironment


class ProblemMemo(NamedTuple):
    """What a search of one problem needs."""

    prompt: Sequence[int]
    """Token ids, the chat template applied."""
    environment: SearchEnvironment


class MemoizedModels:
    """Both models with the application's default settings. For one event loop."""

    def __init__(self, matcher: AnswerMatcher) -> None:
        config = AppConfig()
        assert isinstance(config.prm, StepHeadSettings)
        generator, prm = Path(config.generator_engine.model_path), Path(config.prm.model_path)
        tokenizer = AutoTokenizer.from_pretrained(generator)
        self._matcher = matcher
        self._context = config.search_context
        self._chat = ChatEncoder(tokenizer)
        self._language = _language(tokenizer, config.generator.step_delimiter, config.generator.max_model_len)
        prm_tokenizer = AutoTokenizer.from_pretrained(prm)
        self._family = StepHead(config.prm, prm_tokenizer)
        language_model = Qwen2ForCausalLM.from_pretrained(generator).float().eval()
        prm_model = load_prm(prm_tokenizer, prm)

        @torch.inference_mode()
        def logits(hidden: Tensor) -> list[Logits]:
            return list(language_model.lm_head(hidden).numpy())

        @torch.inference_mode()
        def rewards(hidden: Tensor) -> list[float]:
            return self._family.rewards_of(prm_model.score(hidden).double()).tolist()

        self.prefixes = PathReader(PagedTrunk(language_model.model), logits)
        self.scored = PathReader(PagedTrunk(prm_model.model), rewards)

    @contextmanager
    def problem(self, question: str) -> Iterator["ProblemMemo"]:
        """Yields the environment that the searches of one problem share; its prefixes are forgotten afterwards."""
        prompt = self._chat.encode_chat([{"role": "user", "content": question}])
        generator = MemoizedGenerator(self._language, self.prefixes, prompt)
        scorer = MemoizedScorer(self._family, self.scored, question)
        try:
            yield ProblemMemo(prompt, SearchEnvironment(generator, scorer, self._context, self._matcher))
        finally:
            self.prefixes.trunk.forget(generator.slots)
            self.scored.trunk.forget(scorer.slots)


def _language(tokenizer: PreTrainedTokenizerBase, delimiter: str, context: int) -> Language:
    eos_ids = frozenset({tokenizer.eos_token_id})  # the generation config names no other
    splitter = StepSplitter(tokenizer, delimiter, eos_ids)
    texts = enumerate(tokenizer.batch_decode([[token] for token in range(len(tokenizer))]))
    return Language(splitter, eos_ids, frozenset(token for token, text in texts if delimiter[-1] in text), context)
