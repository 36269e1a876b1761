"""Published formats of reward models that predict label tokens, as presets of ``labels``.

A preset is a subclass of `LabelSettings` in this module: its docstring says where the format is published, its
``preset`` is the format. The tests compare the token ids of each with those of the published code.
"""

from typing import ClassVar, Literal

from pydantic import Field

from deployments.engines.rewards.labels import Labels, LabelSettings, LabelTemplate
from deployments.engines.settings import SystemPrompt


class LabelTurnsSettings(LabelSettings):
    """RLHFlow's Llama3.1-8B-PRM: every step is a user turn, which the assistant answers with a label.

    Source: ``select_sample`` in ``math-rm/prm_evaluate.py`` of RLHFlow/RLHF-Reward-Modeling.
    """

    family: Literal["label_turns"] = "label_turns"
    labels: Labels = ("+", "-")
    system_prompt: SystemPrompt = None

    @property
    def label_template(self) -> LabelTemplate:
        return LabelTemplate(tag=None, labels=self.labels, system_prompt=self.system_prompt)


class LabelInlineSettings(LabelSettings):
    """One line of text for each step, with a space and a tag at its end: Math-Shepherd's format without numbers."""

    family: Literal["label_inline"] = "label_inline"
    labels: Labels = ("+", "-")
    step_tag: str = Field("ки", min_length=1, description="Token at which a step's reward is read.")

    @property
    def label_template(self) -> LabelTemplate:
        return LabelTemplate(tag=f" {self.step_tag}", labels=self.labels)


class LabelTokensSettings(LabelSettings):
    """A format of one's own."""

    family: Literal["label_tokens"] = "label_tokens"
    template: LabelTemplate = LabelTemplate()

    @property
    def label_template(self) -> LabelTemplate:
        return self.template

    @property
    def added_text(self) -> str:
        return self.template.question + (self.template.system_prompt or "")


class MathShepherdSettings(LabelSettings):
    """Math-Shepherd (arXiv 2312.08935): ``Q Step 1: S ки\\nStep 2: S ки``.

    Source: the model card, and ``MathShepherd.getitem_function`` in ``mr_eval/models/math_shepherd.py`` of
    ssmisya/PRMBench, which also leaves steps alone that begin with ``Step``.
    """

    family: Literal["math_shepherd"] = "math_shepherd"
    preset: ClassVar[LabelTemplate] = LabelTemplate(step="Step {number}: {step}")


class ErPrmSettings(LabelSettings):
    """ER-PRM, Llama3.1-Math-PRM (arXiv 2412.11006): Math-Shepherd's text without newlines, and labels with a space.

    Source: the evaluation in the README and ``evaluation/evaluate_math_reward_model.py`` (``select_sample``,
    ``worker``) of hanningzhang/ER-PRM. The README reads the tag ``ки`` without a space, which is another token in
    Llama 3's vocabulary and never occurs in its text; the script, like ``get_prm_special_tokens`` in
    ``src/reason/inference/rm_call.py`` of RyanLiu112/compute-optimal-tts, reads `` ки``.
    """

    family: Literal["er_prm"] = "er_prm"
    preset: ClassVar[LabelTemplate] = LabelTemplate(step="Step {number}: {step}", separator="", labels=(" +", " -"))


class MathPsaSettings(LabelSettings):
    """Math-PSA of OpenR (arXiv 2410.09671): five newlines as the tag, labels with a space.

    Source: ``_qwen_math_infer_fn`` in ``prm/infer_fns.py`` and the example in ``prm/code/test_qwen.py`` of
    openreasoner/openr. The model is a LoRA adapter of Qwen2.5-Math-7B-Instruct, and has to be merged into it.
    """

    family: Literal["math_psa"] = "math_psa"
    preset: ClassVar[LabelTemplate] = LabelTemplate(
        step="Step {number}: {step}", tag=" \n\n\n\n\n", separator=" ", labels=(" +", " -")
    )


class VersaPrmSettings(LabelSettings):
    """VersaPRM (arXiv 2502.06737), Llama-PRM800K and Qwen-PRM800K: four newlines as the tag.

    Source: ``main`` in ``evaluation/get_rewards_reasoning_step.py`` and ``LlamaPRM`` in
    ``evaluation/prm_models/prm_llama.py`` of UW-Madison-Lee-Lab/VersaPRM.
    """

    family: Literal["versaprm"] = "versaprm"
    preset: ClassVar[LabelTemplate] = LabelTemplate(
        question="{question} \n\n", strip_question=True, tag=" \n\n\n\n", separator=""
    )


class MultiRmSettings(LabelSettings):
    """dPRM of Multi-RM (arXiv 2510.00492): VersaPRM's text, read with the model's own tokenizer.

    Source: ``flatten_all_data`` in ``discriminative/get_reward.py`` and ``RewardModel`` in
    ``discriminative/reward_model.py`` of db-Lee/Multi-RM.
    """

    family: Literal["multi_rm"] = "multi_rm"
    preset: ClassVar[LabelTemplate] = VersaPrmSettings.preset


LABEL_PRESETS: tuple[type[LabelSettings], ...] = tuple(LabelSettings.__subclasses__())
"""All of this module."""
