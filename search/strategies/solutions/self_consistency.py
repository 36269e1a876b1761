"""Self-consistency: N whole solutions and a majority vote, without a reward model."""

from typing import ClassVar, Literal

from pydantic import Field

from search.answers.voting import SelectionRule
from search.strategies.solutions.whole_solutions import WholeSolutions


class SelfConsistency(WholeSolutions):
    """Whole solutions and a majority vote, without a reward model.

    Source: Wang et al. 2022 (arXiv 2203.11171).
    """

    aliases: ClassVar[tuple[str, ...]] = ("sc",)
    needs_rewards: ClassVar[bool] = False

    name: Literal["self_consistency"] = "self_consistency"
    selection: Literal[SelectionRule.MAJORITY, SelectionRule.MEDOID] = Field(
        SelectionRule.MAJORITY,
        description="A majority vote, since nothing is scored. Where no answer can be extracted, `majority` counts "
        "texts of the same meaning, and `medoid` takes the text nearest to all others.",
    )
