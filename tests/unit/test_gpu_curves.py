"""The models that `benchmarks.gpu_curves` times compute what a decoder computes."""

import pytest
import torch

from benchmarks.gpu_curves import SHAPES, Model, claims, same_states


def test_the_states_of_a_new_step_equal_those_in_a_pass_over_the_whole_path() -> None:
    with torch.inference_mode():
        assert same_states("cpu") < 1e-3


def test_decoding_token_by_token_equals_one_pass() -> None:
    with torch.inference_mode():
        model = Model(SHAPES["tiny"], "cpu", compiled=False, dtype=torch.float32)
        ids = model.ids(2, 12)
        whole = model.states(ids, model.caches(2, 12))
        kept = [layer[:, :11].clone() for layer in model.caches(2, 12)]
        caches = [torch.cat((layer, torch.full_like(layer[:, :1], float("nan"))), 1) for layer in kept]
        torch.testing.assert_close(model.states(ids[:, 11:], caches), whole[:, 11:])


def test_attention_is_causal() -> None:
    with torch.inference_mode():
        model = Model(SHAPES["tiny"], "cpu", compiled=False, dtype=torch.float32)
        ids = model.ids(1, 8)
        first = model.states(ids, model.caches(1, 8))[:, :7].clone()
        ids[:, 7] = (ids[:, 7] + 1) % SHAPES["tiny"].vocabulary
        torch.testing.assert_close(model.states(ids, model.caches(1, 8))[:, :7], first)


def test_the_shapes_have_the_sizes_of_the_models() -> None:
    # Qwen2.5-1.5B has 1.54 B parameters with one table for embedding and head; 7B has 7.6 B with two.
    assert SHAPES["1.5B"].weight_bytes / 2 == pytest.approx(1.54e9, rel=0.01)
    assert SHAPES["7B"].weight_bytes / 2 == pytest.approx(7.07e9, rel=0.01)
    assert [SHAPES[name].kv_bytes for name in ("1.5B", "7B")] == [28_672, 57_344]


def test_claims_compare_measured_times() -> None:
    curves = {
        "x": {
            "decode": [{"batch": 16, "context": 256, "step_s": 0.01}, {"batch": 64, "context": 256, "step_s": 0.02}],
            "reading": [{"paths": 16, "tokens": 1024, "whole_s": 1.0, "step_s": 0.05}],
            "restoring": [{"tokens": 1024, "fetched_s": 0.3, "computed_s": 1.0}],
        }
    }
    assert [(each["value"], each["holds"]) for each in claims(curves)] == [(2.0, False), (0.05, True), (0.3, True)]
