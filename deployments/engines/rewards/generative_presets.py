"""Published formats of generative verifiers, as presets of ``generative``.

A preset is a subclass of `VerifierSettings` in this module: its docstring says where the format is published, its
``preset`` is the format, the defaults of its settings are the authors'. The tests compare the token ids of each with
those of the published code.
"""

from typing import ClassVar, Literal

from pydantic import Field

from deployments.engines.rewards.generative import VerifierSettings, VerifierTemplate


class GenerativeSettings(VerifierSettings):
    """A format of one's own; the default suits any model that follows instructions."""

    family: Literal["generative"] = "generative"
    template: VerifierTemplate = VerifierTemplate()

    @property
    def verifier_template(self) -> VerifierTemplate:
        return self.template


_REVIEW = (
    "Review and critique each step in the proposed solution to determine whether each step is correct. If the solution "
    "is incomplete, only verify the provided steps."
)


class ThinkPrmSettings(VerifierSettings):
    """ThinkPRM (arXiv 2504.16828), built on R1-Distill-Qwen.

    Source: ``format_verification_cot_for_thinkprm`` in ``utils/helper.py`` and ``APIThinkPRMVerifier`` in
    ``prm/thinkprm_api.py`` of mukhal/ThinkPRM, as its search uses them (``process_verifier``)::

        You are given a math problem and a proposed step-by-step solution:\\n\\n[Math Problem]\\n\\n{problem}\\n\\n
        [Solution]\\n\\n{solution}\\n\\n{_instruction}

    in the chat template, then ``\\nLet's verify step by step:``. Generation stops at ``Is the solution correct?``,
    ``</think>`` or the number of a step that does not exist, and the code appends ``\\nIs the solution correct? ``
    itself. There ``yes`` and ``no`` are compared by SGLang's ``choices``, by a mean over the choice's token and the one
    before; here by the choice's token alone. Samples and temperature are those of the recipe
    ``thinkprm_parallel_scaling.yaml``.
    """

    family: Literal["think_prm"] = "think_prm"
    samples: int = Field(4, ge=1, le=64)
    max_tokens: int = Field(8192, ge=1, le=131_072)
    temperature: float = Field(0.4, ge=0, le=2)
    preset: ClassVar[VerifierTemplate] = VerifierTemplate(
        user="You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n{question}\n\n"
        "[Solution]\n\n{steps}\n\n" + _REVIEW,
        renumber=True,
        opening="\nLet's verify step by step:",
        stop=("Is the solution correct?", "</think>", "Step {next}:"),
        cue=None,
        labels=(" yes", " no"),
    )


class MultiRmGenerativeSettings(VerifierSettings):
    """gPRM of Multi-RM (arXiv 2510.00492), with its prompt for mathematics.

    Source: ``PRM_PROMPT_FORMAT`` in ``generative/prompt_formats.py`` and ``RewardModel`` in
    ``generative/reward_model.py`` of db-Lee/Multi-RM: ThinkPRM's prompt with single newlines, then ``Let's verify step
    by step:``. The model writes ``Is the solution correct? Yes`` or ``No`` itself. The published code leaves out a
    critique without it; here one gets the text appended.
    """

    family: Literal["multi_rm_generative"] = "multi_rm_generative"
    samples: int = Field(10, ge=1, le=64)
    max_tokens: int = Field(8192, ge=1, le=131_072)
    preset: ClassVar[VerifierTemplate] = VerifierTemplate(
        user="You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n{question}\n\n"
        "[Solution]\n{steps}\n\n" + _REVIEW,
    )


class GenPrmSettings(VerifierSettings):
    """GenPRM (arXiv 2504.00891) without its interpreter: an analysis, then the judgement.

    Source: ``Reward_Service.inference`` in ``src/prm_evaluation/infer_module/infer_genprm.py`` with ``analyze`` and
    without ``verify``, ``process_file`` in ``eval_logic/reward_generate.py``, and ``get_reward_score`` in
    ``infer_module/genprm_inference.py`` of RyanLiu112/GenPRM: a user turn for each paragraph, the first with the
    problem (and a newline, as in ``infer_module/prm_evaluate.py``). The critique begins with ``<analyze>\\nLet's
    analyze the Paragraph {cur_step} step by step: ``, stops at ``</analyze>\\n``, and ``<output>\\n**Judgement**:
    $\\boxed`` is appended. In the published code the assistant's turns for earlier paragraphs are the critiques that
    the model wrote about them. Here each is a judgement alone, and it is Yes: no reward depends on another critique.
    """

    family: Literal["gen_prm"] = "gen_prm"
    samples: int = Field(8, ge=1, le=64)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int = Field(20, ge=0, le=1_000_000)
    preset: ClassVar[VerifierTemplate] = VerifierTemplate(
        system_prompt="You are a math teacher. Your task is to review and critique the paragraphs in solution step by "
        "step.",
        user="{question}\n{step}",
        step="{step}",
        answer="<output>\n**Judgement**: $\\boxed{Yes}$\n</output>\n",
        opening="<analyze>\nLet's analyze the Paragraph {number} step by step: ",
        stop=("</analyze>\n",),
        cue=None,
        verdict="</analyze>\n<output>\n**Judgement**: $\\boxed{",
        labels=("Yes", "No"),
    )


class RPrmSettings(VerifierSettings):
    """R-PRM (arXiv 2503.21295), built on Qwen2.5-Math-7B-Instruct.

    Source: ``src/prompts/GenPRM/GenPRM-evaluate-new3.json`` and ``get_critique_prompt`` and ``get_reward`` in
    ``src/reward-guide-search/code/GenPRM-Greedy-Seach-Zero-Shot.py`` of NJUNLP/R-PRM; the system prompt is that of
    ``GenPRM-evaluate-new3-qwen.txt``, with which the label is read there. (That file spells the newlines around the
    assistant's turn as a backslash and an n.) The critique ends at its first ``Is the step correct (Yes/No)?``. The
    published search leaves out a critique without it; here one gets the text that the code there would append.
    """

    family: Literal["r_prm"] = "r_prm"
    samples: int = Field(10, ge=1, le=64)
    max_tokens: int = Field(3072, ge=1, le=131_072)
    temperature: float = Field(0.95, ge=0, le=2)
    top_p: float = Field(0.95, gt=0, le=1)
    preset: ClassVar[VerifierTemplate] = VerifierTemplate(
        system_prompt="You are a helpful assistant.",
        user="You are an excellent math teacher. Please verify the correctness of the Now Step.\n"
        "\n"
        "You first need to analyze the Now Step and the Previous Steps and then summarize based on your "
        "analysis.\n"
        "Analysis:\n"
        "You need to analyze the following aspects.\n"
        "**Previous Steps Analysis**: You need to analyze the Previous Steps step by step. For each step, "
        "you need to first explain what the current step is doing, then you try to find any error in the "
        "current step.\n"
        "**Now Step Analysis**: You first need to explain what the Now Step is doing, and then point out "
        "which part of the Question it is trying to solve or which part of the information it states.\n"
        "**Data Source Analysis**: First you need to find out what data are used in the Now Step, and then "
        "you need to determine whether the source of the data is reasonable and correct. When you judge "
        "whether the source of a data is reasonable and correct, you need to specify the specific source "
        "of this data: such as which part of the question, or which content of the previous step; and then "
        "determine the source and current use is consistent, the Now Step is used correctly.\n"
        "**Consistency Analysis**: You need to check that the Now Step is consistent with the contents of "
        "the Previous Steps, and then you need to check that all the information inside the Now Step is "
        "consistent.\n"
        "**Calculation Analysis**: If the Now Step involves any calculations, such as addition, "
        "subtraction, multiplication, division, equations, modulo operations, etc., you will first need to "
        "perform a check on the calculation, such as a reverse operation, to see if the calculation was "
        "done correctly, and then analyze the results of your check to see if there was an error in the "
        "calculation.\n"
        "Conclusion: \n"
        "Please verify the correctness of the Now Step based on your analysis, if there is any error in "
        "the Now Step then the Now Step is wrong and vice versa the Now Step is correct. At the end of the "
        'Conclusion, when you give your final answer, write it in the form "Verification: Is the step '
        'correct (Yes/No)? X", where X is either Yes or No.\n'
        "\n"
        "Question: {question}\n"
        "Previous Steps: {previous}\n"
        "Now Step: {step}\n"
        "Please carefully analyze the correctness of the Now Step.\n"
        "Reply: ",
        step="{step}",
        opening="",
        no_previous="Since the Now Step is the first step, there are no Previous Steps.",
        cue="Is the step correct (Yes/No)?",
        verdict="\nBased on your analysis. Is the step correct (Yes/No)?",
    )


GENERATIVE_PRESETS: tuple[type[VerifierSettings], ...] = tuple(VerifierSettings.__subclasses__())
"""All of this module."""
