"""The published formats of reward models with label tokens, token for token; `tests/models` has the same with the
models' own tokenizers."""

from typing import Any

import pytest
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards import FAMILIES, parse_prm
from deployments.engines.rewards.label_presets import LABEL_PRESETS, LabelTokensSettings
from deployments.engines.rewards.labels import LabelSettings, LabelTemplate, LabelTokens
from deployments.engines.rewards.token_class import TokenClass, TokenClassSettings
from scripts.embedded.tokenizer import STEP_TAG, build_tokenizer
from tests.engine.published import LABEL_INPUTS, LabelInput, trl_input
from tests.engine.vocabularies import LLAMA_3, byte_level, sentencepiece, token_id

QUESTION = "How many eggs are left?\n"
STEPS = [
    "She has 16 - 3 = 13 eggs.\n\n",
    "Step 2: We write \\[\n  16 - 3\n\\]\n\n",
    "  so \\(x = 13\\)\n\n",
    "step 4: + or - is no label, and neither is к",
    "The answer is 13",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """It has the published tags and labels as tokens, and as Llama 3's one token for several newlines."""
    return byte_level([" \n\n\n\n\n", " ки", " +", " -", ".\n\n", "Step"], LLAMA_3)


def preset(name: str, tokenizer: PreTrainedTokenizerBase) -> LabelTokens:
    settings = parse_prm({"family": name, "model": "any"})
    assert isinstance(settings, LabelSettings)
    return LabelTokens(settings, tokenizer)


def assert_reads(family: LabelTokens, expected: LabelInput, question: str = QUESTION) -> None:
    """Each step is scored where the published code reads its label in the text of all steps."""
    queries = family.queries(question, STEPS, len(STEPS))
    assert [query.token_ids for query in queries] == [expected.token_ids[: tag + 1] for tag in expected.tags]
    assert [query.tags for query in queries] == [(tag,) for tag in expected.tags]
    assert all(query.params.logprob_token_ids == list(expected.labels) for query in queries)  # type: ignore[union-attr]


def test_every_preset_is_tested() -> None:
    own = {"label_turns", "label_inline", "label_tokens"}
    assert {each.model_fields["family"].default for each in LABEL_PRESETS} == own | LABEL_INPUTS.keys()


@pytest.mark.parametrize("name", LABEL_INPUTS)
def test_prompts_equal_the_published_ones(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    if name == "math_shepherd":
        tokenizer = sentencepiece()  # its tag is read without the space that is in the text: a byte-level one differs
    assert_reads(preset(name, tokenizer), LABEL_INPUTS[name](tokenizer, QUESTION, STEPS))


@pytest.mark.parametrize("name", ["versaprm", "math_psa"])
def test_newlines_in_a_step_are_no_tag(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    family = preset(name, tokenizer)
    queries = family.queries("Q", ["a \n\n\n\n b \n\n\n\n\n c", " \n\n\n\n\n", "d"], 3)
    assert len(queries) == 3
    [tag] = {query.token_ids[-1] for query in queries}
    assert tokenizer.decode([tag]).strip(" \n") == ""


@pytest.mark.parametrize("name", LABEL_INPUTS)
def test_a_vocabulary_without_the_tag_is_refused(name: str) -> None:
    # As Llama 2's and Qwen2.5's, which spell four newlines, or the Cyrillic tag behind a space, in several tokens.
    tokenizer = byte_level([" к", "\n\n", " +", " -"], LLAMA_3)
    with pytest.raises(EngineStartError, match="is not a token of the process reward model"):
        preset(name, tokenizer)


def own_format(tokenizer: PreTrainedTokenizerBase, **template: Any) -> LabelTokens:
    return LabelTokens(LabelTokensSettings(model="any", template=LabelTemplate(**template)), tokenizer)


def test_a_format_of_ones_own_is_what_its_template_says(tokenizer: PreTrainedTokenizerBase) -> None:
    family = own_format(
        tokenizer,
        question="Problem: {question}|",
        step="{number}) {step}\nRight",
        tag="?",
        separator=" ",
        labels=("Y", "N"),
    )
    *_, last = family.queries("{step} {number}", ["a {step}\n\n", " b", "c"], 1)
    text = "Problem: {step} {number}|1) a {step}\nRight? 2) b\nRight? 3) c\nRight?"
    assert tokenizer.decode(last.token_ids[1:]) == text
    assert last.token_ids[0] == tokenizer.bos_token_id
    assert last.params.logprob_token_ids == tokenizer.encode("YN")  # type: ignore[union-attr]


def test_a_tag_may_be_a_special_token_which_no_text_can_add() -> None:
    tokenizer = build_tokenizer()
    family = own_format(tokenizer, tag=f" {STEP_TAG}")
    [query] = family.queries(f"Q{STEP_TAG}", [f"a {STEP_TAG}\n", "b", STEP_TAG], 1)
    tag = tokenizer.convert_tokens_to_ids(STEP_TAG)
    assert query.token_ids.count(tag) == 3
    assert (
        tokenizer.decode(query.token_ids) == f"Q{STEP_TAG} a {STEP_TAG} {STEP_TAG}\nb {STEP_TAG}\n{STEP_TAG} {STEP_TAG}"
    )


def test_without_a_tag_each_step_is_a_turn() -> None:
    tokenizer = build_tokenizer()
    template: dict[str, Any] = {"tag": None, "step": "Step {number}: {step}", "labels": ("A", "B")}
    template["system_prompt"] = "Judge."
    assert LabelTemplate(**template).tokens_per_step == LabelTemplate(tag=None).tokens_per_step + len("Step 0000: ")
    [query] = own_format(tokenizer, **template).queries("Q", ["a\n\n", "b"], 1)
    turns = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "Q Step 1: a"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "Step 2: b"},
    ]
    expected = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert query.token_ids == tokenizer.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize(
    "template",
    [
        {"question": "Q"},
        {"question": "{question} {question}"},
        {"question": "{question} {}"},
        {"step": "{number}"},
        {"step": "{step} {number}"},
        {"step": "{steps}"},
        {"tag": ""},
        {"labels": ["+"]},
        {"tags": " ки"},
    ],
)
def test_a_template_without_its_parts_is_refused(template: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"template.{next(iter(template))}"):
        parse_prm({"family": "label_tokens", "model": "any", "template": template})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"system_prompt": "Judge."}, "system_prompt has an effect only without a tag"),
        ({"tag": None, "separator": " "}, "separator has no effect without a tag"),
    ],
)
def test_a_template_refuses_what_it_would_not_read(template: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LabelTemplate(**template)


@pytest.mark.parametrize("name", [each.model_fields["family"].default for each in LABEL_PRESETS])
def test_a_format_adds_no_more_tokens_than_its_settings_say(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    if name == "label_turns":
        tokenizer = build_tokenizer()
        tokenizer.bos_token = None
    settings = FAMILIES[name].model_validate({"family": name, "model": "any"})
    assert isinstance(settings, LabelSettings)
    family = LabelTokens(settings, tokenizer)
    plain = [f"{n} eggs" for n in range(200)]
    [query] = family.queries(QUESTION, plain, 1)
    written = sum(len(tokenizer.encode(text)) for text in (QUESTION, *plain))
    assert len(query.token_ids) <= written + settings.format_tokens(len(plain))


@pytest.mark.parametrize("separator", ["\n", "\n\n", "<eos>"])
def test_token_class_input_equals_that_of_the_trainer(separator: str, tokenizer: PreTrainedTokenizerBase) -> None:
    stripped = [step.strip() for step in STEPS]
    ids, ends = trl_input(tokenizer, QUESTION, stripped, separator)
    [query] = TokenClass(TokenClassSettings(model="any", step_separator=separator), tokenizer).queries(
        QUESTION, STEPS, len(STEPS)
    )
    assert query.token_ids == ids
    assert list(query.tags) == ends
    if separator == "<eos>":
        assert query.token_ids[ends[0]] == token_id(tokenizer, "<eos>")  # type: ignore[arg-type]
