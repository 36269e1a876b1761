"""Rewards under vLLM's newer model runner, which needs a GPU: its pooler runs here, and is given the batches that the
rest of it would make."""

import random
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.config import ModelConfig, PoolerConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.pooler.tokwise import AllPool, TokenPooler
from vllm.model_executor.layers.pooler.tokwise.heads import TokenClassifierPoolerHead
from vllm.v1.worker.gpu.pool.pooling_runner import PoolingRunner

from deployments.engines.rewards.ensemble_model import Qwen2ForEnsemblePRM
from deployments.engines.rewards.family import Query
from deployments.engines.rewards.heads import Head
from deployments.engines.rewards.implicit import Implicit, ImplicitSettings
from deployments.engines.rewards.implicit_model import AllRows, PolicyAndReference
from deployments.engines.rewards.step_head import StepHead, StepHeadSettings
from scripts.embedded.tokenizer import build_tokenizer
from tests.engine.reward_models import random_path

BLOCK = 16
SLOTS = 4
VOCABULARY = 384


class TokenHead(Qwen2ForEnsemblePRM):
    """A model whose hidden states are its head's numbers, with the pooler that vLLM gives such models."""

    width = StepHead.classes

    def __init__(self, *, vllm_config: Any = None, prefix: str = "") -> None:
        torch.nn.Module.__init__(self)
        self.pooler = TokenPooler(AllPool(), TokenClassifierPoolerHead())


class TwoModels(PolicyAndReference):
    """The model of implicit rewards, whose hidden states are its logits."""

    width = 2 * VOCABULARY

    def __init__(self, *, vllm_config: Any = None, prefix: str = "") -> None:
        torch.nn.Module.__init__(self)
        logits = SimpleNamespace(compute_logits=lambda states: states)
        self.pair = SimpleNamespace(policy=logits, reference=logits)
        self.pooler = TokenPooler(AllRows(), self._log_ratios)


class Reading:
    """A query at the engine, with the hidden states of its tokens."""

    def __init__(self, query: Query, states: torch.Tensor) -> None:
        self.query = query
        self.states = states
        self.slot: int | None = None
        self.computed = 0
        self.rows: torch.Tensor | None = None

    @property
    def tokens(self) -> int:
        return len(self.query.token_ids)

    @property
    def output(self) -> Any:
        return SimpleNamespace(outputs=SimpleNamespace(data=self.rows))


class NewerRunner:
    """Calls the pooler as `GPUModelRunner` does in ``v1/worker/gpu/model_runner.py``: see `add_requests`,
    `finish_requests`, which also removes preempted requests, `prepare_inputs` and `pool` there."""

    def __init__(self, model: torch.nn.Module, rng: random.Random) -> None:
        config = SimpleNamespace(pooler_config=PoolerConfig(tok_pooling_type="ALL"), architectures=["Any"])
        config.get_pooling_task = partial(ModelConfig.get_pooling_task, config)
        scheduler = SimpleNamespace(max_num_seqs=SLOTS)
        self.pooler = PoolingRunner(model, SimpleNamespace(model_config=config, scheduler_config=scheduler))
        self._rng = rng
        self._free = list(range(SLOTS))
        self._prompt_lengths = np.zeros(SLOTS, dtype=np.int32)

    def read(self, readings: list[Reading]) -> None:
        """Computes the queries in chunks, starting behind cached prefixes, and preempts some of them."""
        while waiting := [each for each in readings if each.rows is None]:
            begun = [each for each in waiting if each.slot is not None]
            if begun and self._rng.random() < 0.2:
                self._end(self._rng.choice(begun))
            batch = waiting[:SLOTS]
            for each in batch:
                if each.slot is None:
                    self._begin(each)
            self._rng.shuffle(batch)
            self._step([(each, min(each.tokens - each.computed, self._rng.randint(1, 40))) for each in batch])

    def _begin(self, reading: Reading) -> None:
        blocks = 0 if reading.query.params.skip_reading_prefix_cache else (reading.tokens - 1) // BLOCK
        reading.computed = BLOCK * self._rng.randint(0, blocks)
        reading.slot = self._free.pop(0)
        self._prompt_lengths[reading.slot] = reading.tokens
        ids = reading.query.token_ids
        self.pooler.add_request(f"request {id(reading)}", reading.slot, reading.query.params, ids)  # type: ignore[arg-type]

    def _end(self, reading: Reading) -> None:
        assert reading.slot is not None
        self.pooler.remove_request(reading.slot)
        self._free.append(reading.slot)
        reading.slot = None

    def _step(self, chunks: list[tuple[Reading, int]]) -> None:
        lengths = np.array([length for _, length in chunks], dtype=np.int32)
        states = [each.states[each.computed : each.computed + length] for each, length in chunks]
        for each, length in chunks:
            each.computed += length
        padding = torch.full((self._rng.randint(0, 3), states[0].shape[1]), torch.nan)
        batch = SimpleNamespace(
            req_ids=[f"request {id(each)}" for each, _ in chunks],
            num_reqs=len(chunks),
            num_tokens=int(lengths.sum()),
            idx_mapping_np=np.array([each.slot for each, _ in chunks]),
            num_scheduled_tokens=lengths,
            query_start_loc=torch.tensor([0, *lengths.cumsum()]),
            seq_lens_cpu_upper_bound=torch.tensor([each.computed for each, _ in chunks] + [0] * len(padding)).int(),
        )
        lengths_of_prompts = SimpleNamespace(prompt_len=SimpleNamespace(np=self._prompt_lengths))
        outputs, finished = self.pooler.pool(torch.cat([*states, padding]), batch, lengths_of_prompts)  # type: ignore[arg-type]
        for (each, _), output, is_finished in zip(chunks, outputs, finished, strict=True):
            assert is_finished == (each.computed == each.tokens) == (output is not None)
            if is_finished:
                each.rows = output
                self._end(each)


@pytest.fixture(scope="module", autouse=True)
def chunked_prefill() -> Iterator[None]:
    with set_current_vllm_config(config := VllmConfig()):
        assert config.scheduler_config.enable_chunked_prefill
        yield


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Head, Any]]:
    """Each kind of head, with the class of its model."""
    tokenizer, reference = build_tokenizer(), str(tmp_path_factory.mktemp("reference"))
    tokenizer.save_pretrained(reference)
    implicit = Implicit(ImplicitSettings(model="any", reference=reference), tokenizer)
    return [(StepHead(StepHeadSettings(model="any"), tokenizer), TokenHead), (implicit, TwoModels)]


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=8)
def test_rewards_are_those_of_whole_paths(families: list[tuple[Head, Any]], seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for family, model_class in families:
        model = model_class()
        runner = NewerRunner(model, rng)
        question, steps = random_path(rng)
        queries = [family.query(question, steps, rng.randint(1, len(steps))) for _ in range(6)]
        readings = [Reading(query, torch.randn(len(query.token_ids), model.width)) for query in queries]
        runner.read(readings)
        # As the scoring engine does.
        readings = [
            Reading(each.query.uncached(), each.states)
            if family.missing_rows(each.output, each.query) > each.query.first
            else each
            for each in readings
        ]
        runner.read(readings)
        for each in readings:
            rewards = family.rewards(each.output, each.query)
            each.rows = whole(model, each)
            assert rewards == pytest.approx(family.rewards(each.output, each.query))


def whole(model: Any, reading: Reading) -> torch.Tensor:
    """The rows of all tokens."""
    ids = torch.tensor(reading.query.token_ids)
    metadata = SimpleNamespace(pooling_params=[reading.query.params], get_prompt_token_ids_cpu=lambda: [ids])
    [rows] = model.pooler.head([reading.states], metadata)
    return rows


def test_the_pooler_is_warmed_up_before_the_first_request(families: list[tuple[Head, Any]]) -> None:
    for _, model_class in families:
        model = model_class()
        NewerRunner(model, random.Random(1)).pooler.dummy_pooler_run(torch.zeros(37, model.width))
