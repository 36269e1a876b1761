"""Best-of-N: N whole solutions, every step scored, the best answer taken."""

from typing import ClassVar, Literal

from search.strategies.solutions.whole_solutions import WholeSolutions


class BestOfN(WholeSolutions):
    """Writes whole solutions, scores every step, takes the best answer.

    Source: Cobbe et al. 2021 (arXiv 2110.14168), with the step rewards aggregated over each solution.
    """

    aliases: ClassVar[tuple[str, ...]] = ("best",)

    name: Literal["best_of_n"] = "best_of_n"
