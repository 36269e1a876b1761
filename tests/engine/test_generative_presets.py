"""The published formats of generative verifiers, token for token; `tests/models` has the same with a model's own
tokenizer."""

from typing import Any

import pytest
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase
from vllm import SamplingParams

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards import parse_prm
from deployments.engines.rewards.family import Query
from deployments.engines.rewards.generative import Generative, VerifierSettings, VerifierTemplate
from deployments.engines.rewards.generative_presets import GENERATIVE_PRESETS, GenerativeSettings
from tests.engine.published import VERIFIER_INPUTS
from tests.engine.verifier_model import CHATML
from tests.engine.vocabularies import LLAMA_3, byte_level

QUESTION = "How many eggs are left? {steps}\n"
STEPS = ["She has 16 - 3 = 13 eggs.\n\n", "Step 2: We write \\[\n  16 - 3\n\\] {question}\n\n", "  The answer is 13"]
CRITIQUES = [
    "16 - 3 = 13, so it is correct.\nStep 2: The step is \\boxed{correct}",
    "3 steps.\nIs the solution correct? Yes, and more",
    "7 Verification: Is the step correct (Yes/No)? No",
    "1</analyze>\n<output>",
    "5 is \\boxed{incorrect}\n</think>\n\nStep 4: There is no such step",
    "",
]
R1_CHAT = (
    "{% for message in messages %}{% if message.role == 'user' %}<｜User｜>{{ message.content }}{% else %}"
    "<｜Assistant｜>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
"""What the template of R1-Distill-Qwen, of which ThinkPRM and Multi-RM's gPRM are made, makes of a question."""
CHATS = {"think_prm": R1_CHAT, "multi_rm_generative": R1_CHAT, "gen_prm": CHATML, "r_prm": CHATML}


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    """It has the published labels as tokens, and one token for two newlines."""
    return byte_level(["\n\n", ".\n", " Yes", " No", " yes", " no", "Yes", "No", "Step", " step"], LLAMA_3)


def verifier(name: str, tokenizer: PreTrainedTokenizerBase) -> Generative:
    settings = parse_prm({"family": name, "model": "any"})
    assert isinstance(settings, VerifierSettings)
    return Generative(settings, tokenizer)


def verdict_of(family: Generative, query: Query, critique: str) -> Query:
    """The query for the verdict, with the critique cut as the engine would cut it."""
    assert isinstance(query.params, SamplingParams)
    stops = query.params.stop
    assert isinstance(stops, list)
    found = sorted((critique.find(stop), stop) for stop in stops if stop in critique)
    return family.verdict(query, critique[: found[0][0]], found[0][1]) if found else family.verdict(query, critique)


def assert_reads_as_published(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    family = verifier(name, tokenizer)
    queries = family.queries(QUESTION, STEPS, len(STEPS))
    for end, query in enumerate(queries, 1):
        for critique in CRITIQUES:
            expected = VERIFIER_INPUTS[name](tokenizer, QUESTION, STEPS[:end], critique)
            assert query.token_ids == tokenizer.encode(expected.critique, add_special_tokens=False)
            verdict = verdict_of(family, query, critique)
            assert tokenizer.decode(verdict.token_ids) == expected.verdict
            if critique:  # behind an empty one the published code encodes the verdict with the end of the prompt
                assert verdict.token_ids == tokenizer.encode(expected.verdict, add_special_tokens=False)
            assert isinstance(verdict.params, SamplingParams)
            assert verdict.params.logprob_token_ids == list(expected.labels)


def test_every_preset_is_tested() -> None:
    names = {each.model_fields["family"].default for each in GENERATIVE_PRESETS}
    assert names == {"generative"} | VERIFIER_INPUTS.keys()


@pytest.mark.parametrize("name", VERIFIER_INPUTS)
def test_prompts_and_verdicts_are_the_published_ones(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = CHATS[name]
    assert_reads_as_published(name, tokenizer)


@pytest.mark.parametrize("name", VERIFIER_INPUTS)
def test_a_format_adds_no_more_tokens_than_its_settings_say(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = CHATS[name]
    family = verifier(name, tokenizer)
    settings = parse_prm({"family": name, "model": "any", "max_tokens": 10})
    assert isinstance(settings, VerifierSettings)
    plain = [f"{n} eggs" for n in range(200)]
    [query] = family.queries("How many?", plain, 1)
    written = sum(len(tokenizer.encode(text)) for text in ("How many?", *plain))
    marks = sum(len(tokenizer.encode(mark)) for mark in ("<|im_start|>user\n<|im_end|>\n",)) * 400
    room = settings.format_tokens(len(plain)) + (marks if name == "gen_prm" else 64)  # the marks are special tokens
    assert len(query.token_ids) + family.reserved_tokens + 10 <= written + room


def test_labels_of_several_tokens_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    template = VerifierTemplate(labels=(" right", " wrong"))
    with pytest.raises(EngineStartError, match="is not a token of the process reward model"):
        Generative(GenerativeSettings(model="any", template=template), tokenizer)
    with pytest.raises(EngineStartError, match="are not one token each after"):
        Generative(GenerativeSettings(model="any"), byte_level(["Yes", "No"], LLAMA_3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"template": {"user": "{steps}"}}, "user must name"),
        ({"template": {"user": "{question}"}}, "user must name"),
        ({"template": {"user": "{question} {steps} {steps}"}}, "user must name"),
        ({"template": {"user": "{question} {steps} {step}"}}, "user must name"),
        ({"template": {"step": "Step {number}"}}, "step must name"),
        ({"template": {"stop": [""]}}, "template.stop"),
        ({"template": {"labels": [" Yes"]}}, "labels"),
        ({"template": {"stops": ["x"]}}, "no such setting; did you mean stop"),
        ({"samples": 0}, "samples"),
        ({"temperature": 0}, "samples must be 1 with temperature 0, not 4"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_prm({"family": "generative", "model": "any", **given})
