"""Base of best-of-N and self-consistency: N whole solutions below the root."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from search.answers.voting import SelectionRule
from search.caps import MAX_SAMPLES, Uncapped, Width
from search.ports import StopCondition
from search.strategies.base import Expansion, Strategy, refused
from search.strategies.path_score import path_score
from search.strategies.solution_ends import last_step, solution_end
from search.strategies.solutions.vote_posterior import Standing, is_decided
from search.tree import Node, NodeStatus, SearchTree

FIRST_ROUND, ROUNDS = 4, 12
"""Under ``risk``, the number of solutions in the first round. Each later round doubles their number, but has at most
one in ``ROUNDS`` of all. Of votes over 64 solutions of the embedded models (200 validation problems, risk 0.05), rounds
of 5 need 0.48 of the tokens, rounds of 8 need 0.51, and rounds that double without a limit 0.59; rounds of 4 need 0.47,
and change more answers."""
Rounds = Annotated[
    tuple[Annotated[Uncapped, Field(ge=1, le=MAX_SAMPLES)], ...],
    Field(strict=False, max_length=MAX_SAMPLES),
]
FORMER = ("early_stop", "margin", "margin_after")
"""Settings that ``risk`` has replaced."""


class WholeSolutions(Strategy):
    """Writes ``n`` solutions independently of each other, or under ``risk`` fewer, in rounds.

    A round is requested when all solutions before it are complete and the vote over them is not decided. So neither the
    clock nor the order of arrival decides which solutions vote. Under ``first_finish`` their numbers of tokens decide
    (short-m@k: Hassid et al. 2025, arXiv 2505.17813); only how much is written of the others depends on the clock.
    """

    stop_condition: ClassVar[StopCondition] = StopCondition.SOLUTION
    answers_at_once: ClassVar[bool] = True

    n: Width = Field(16, description="Number of solutions to write; under `risk`, the maximum.")
    risk: float | None = Field(
        None,
        ge=0.0,
        le=0.5,
        description="Write the solutions in rounds, and stop when the leading answer would lose the vote of all `n` "
        "with this probability at most. 0: when it cannot lose. Unset: write all `n` at once.",
    )
    rounds: Rounds | None = Field(
        None,
        description="Number of solutions in each round under `risk`; what is left of `n` is one more round. Unset: 4 "
        "in the first, and each doubles their number, up to a twelfth of `n`.",
    )

    first_finish: Annotated[Uncapped, Field(ge=1, le=MAX_SAMPLES)] | None = Field(
        None,
        description="Number of solutions that vote: the shortest of the `n`, and all that are as short as the last of "
        "them. The others end once they are longer. Unset: all `n` vote.",
    )

    @model_validator(mode="before")
    @classmethod
    def _names_former(cls, given: Any) -> Any:
        """Refuses the settings that ``risk`` has replaced, and says so."""
        if isinstance(given, Mapping) and (former := [name for name in FORMER if name in given]):
            fault = PydanticCustomError(
                "replaced", "replaced by `risk`: 0 stops when the answer cannot change, 0.05 when it probably will not"
            )
            faults = [InitErrorDetails(type=fault, loc=(name,), input=given) for name in former]
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return given

    @model_validator(mode="after")
    def _risk_fits(self) -> Self:
        if self.rounds is not None and self.risk is None:
            raise refused(self.name, "rounds", None, "needs `risk`: without it all `n` solutions are written at once")
        if self.risk is not None and self.selection is SelectionRule.NAIVE:
            raise refused(self.name, "risk", None, "needs a vote: `selection` may be weighted or majority, not naive")
        if self.first_finish is not None and self.risk is not None:
            raise refused(self.name, "first_finish", None, "takes no `risk`: its solutions are all begun at once")
        if self.first_finish is not None and self.first_finish > self.n:
            raise refused(self.name, "first_finish", None, f"there are only {self.n} solutions (`n`)")
        return self

    def select(self, tree: SearchTree) -> Sequence[Expansion]:
        # Only when nothing is in flight: the grants of a tight budget then do not depend on the order of arrival.
        asked = tree.root.asked
        if tree.in_flight or asked >= self.n:
            return []
        ends = self._round_ends
        if asked in ends and self._decided(tree):
            return []
        return [Expansion(tree.root, next(end for end in ends if end > asked) - asked)]

    def observe(self, tree: SearchTree, arrived: Sequence[Node]) -> None:
        if self.risk is not None:
            for node in arrived:  # As they come: those of a whole round would hold up the event loop.
                if node.status is NodeStatus.TERMINAL:
                    tree.answer_of(node)
        if tree.in_flight and self._is_over(tree):
            for node in tree.live:
                tree.prune(node)

    @property
    def counts_unfinished(self) -> bool:
        return self.first_finish is not None

    def candidates(self, tree: SearchTree) -> list[Node]:
        """Under `first_finish` its voters, the shortest first: it wins a tie."""
        voters = self._voters(tree)
        return sorted(voters, key=lambda node: (node.path_tokens, node.id)) if voters else super().candidates(tree)

    def votes(self, tree: SearchTree, node: Node) -> Fraction:
        """Under `first_finish` the number of its solutions that vote: of the others, some were never written."""
        return Fraction(voters[node]) if (voters := self._voters(tree)) else super().votes(tree, node)

    def later_samples(self, tree: SearchTree) -> int | None:
        return None if self.risk is None else self.n - tree.root.asked

    def _voters(self, tree: SearchTree) -> Counter[Node]:
        """Under `first_finish` the number of solutions that vote, by the last node of each text; empty until enough are
        finished."""
        if self.first_finish is None:
            return Counter()
        state = len(tree), tree.in_flight
        known: tuple[Any, Counter[Node]] = tree.strategy_cache.get(WholeSolutions, (None, Counter()))
        if known[0] != state:
            ends = [(last_step(sample), solution_end(sample)) for sample in tree.root.children.values()]
            finished = [(last.path_tokens, end) for last, end in ends if tree.is_finished(end)]
            lengths = sorted(tokens for tokens, _ in finished)
            longest = lengths[self.first_finish - 1] if len(lengths) >= self.first_finish else 0
            known = state, Counter(end for tokens, end in finished if tokens <= longest)
            tree.strategy_cache[WholeSolutions] = known
        return known[1]

    def _is_over(self, tree: SearchTree) -> bool:
        """Whether every solution in flight is longer than all that vote under `first_finish`."""
        if not (voters := self._voters(tree)):
            return False
        longest = max(
            last_step(sample).path_tokens for sample in tree.root.children.values() if solution_end(sample) in voters
        )
        return all(
            (tree.unfinished_tokens if node.status is NodeStatus.PENDING else last_step(node).path_tokens) > longest
            for node in tree.live
        )

    @property
    def _round_ends(self) -> list[int]:
        """The number of solutions requested by the end of each round, ``n`` at last."""
        ends = [*accumulate(self.rounds or ())]
        if self.risk is not None and not ends:
            ends, most = [FIRST_ROUND], max(FIRST_ROUND, self.n // ROUNDS)
            while ends[-1] < self.n:
                ends.append(ends[-1] + min(ends[-1], most))
        return [end for end in ends if end < self.n] + [self.n]

    def _decided(self, tree: SearchTree) -> bool:
        """Whether the vote is decided; see `is_decided`. Answers are compared by their canonical spelling, which is
        stricter than the comparison of the vote: two rivals may turn out to be one answer."""
        if self.risk is None:
            return False
        weighted = self.selection is SelectionRule.WEIGHTED and self.needs_rewards
        if weighted and self.vote_weights is not None and self.vote_weights.lowest < 0:
            return False  # The missing samples could take weight from the leader.
        standings: dict[str, Standing] = {}
        written = tree.root.children.values()
        for sample in written:
            end = solution_end(sample)
            score = path_score(end, self.aggregation) if weighted else None
            own = self.vote_weight(score)
            weight = own if own is not None else 1.0 if score is None else score
            if not 0.0 <= weight <= 1.0:
                return False  # What the missing weights can still do has no bound then.
            if (spelling := tree.spelling_of(end)) is not None:
                samples, before = standings.get(spelling, Standing(0, 0.0))
                standings[spelling] = Standing(samples + 1, before + weight)
        unread = len(written) - sum(standing.samples for standing in standings.values())
        return is_decided([*standings.values()], unread, self.n - tree.root.asked, self.risk, weighted)
