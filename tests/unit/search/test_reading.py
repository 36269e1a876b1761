"""Solutions that are read together: what each strategy requests, by hand-worked cases."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Container, Sequence
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError
from search_fakes import PROMPT, Bench, search

from search.errors import ContextsUnavailable
from search.run.report import SearchOutcome
from search.settings import SearchSettings, parse_alias, parse_search
from search.snapshot import tree_as_json
from search.strategies.base import Strategy
from search.strategies.reading.rounds import ReadingRounds
from search.tree import ContextNode, ExpansionRequest, Node, Reading, SearchTree, Step, StepEnd

Write = Callable[[Reading | None, int], str]
"""Text of a solution: what it reads, None for the question alone; and its number in the order of requests."""


def strategy_of(**settings: Any) -> ReadingRounds:
    strategy = parse_search(settings).strategy
    assert isinstance(strategy, ReadingRounds)
    return strategy


def grown(
    strategy: Strategy,
    write: Write,
    rewards: Callable[[str], float] | None = None,
    most: int = 99,
    cut_off: Container[int] = (),
) -> SearchTree:
    """The tree of a strategy whose solutions have one step each; ``most`` of them at most. ``cut_off``: the numbers of
    solutions that end at a token limit."""
    tree = SearchTree(7)
    tree.merges_siblings = strategy.merge_siblings
    while most > len(tree) and (expansions := strategy.select(tree)):
        for expansion in expansions:
            below = expansion.node
            count = min(expansion.count, most - len(tree))
            if expansion.reads is not None and count:
                below = ContextNode((), None, reading=expansion.reads)
                tree.begin(below)
            for _ in range(count):
                [node] = tree.request(below, 1)
                node.request = ExpansionRequest(True, 9, 1)
                text = write(below.reading, len(tree))
                end = StepEnd.LENGTH if len(tree) in cut_off else StepEnd.END_OF_SEQUENCE
                tree.write(node, Step((1,) * len(text), text, end), ends=True)
                tree.complete(node, None if rewards is None else rewards(text))
    return tree


def boxed(answer: object) -> str:
    return rf"It is \boxed{{{answer}}}."


def texts(reading: Reading | None) -> list[str]:
    return [] if reading is None else [source.text for source in reading.sources]


def votes(strategy: ReadingRounds, tree: SearchTree) -> dict[str, int]:
    """The votes of each text, the first one first."""
    return {node.text: int(strategy.votes(tree, node)) for node in strategy.candidates(tree)}


class Answers:
    """Writes these solutions, and choices of readers for what stands first among ``wanted``."""

    def __init__(self, answers: Sequence[object], *wanted: object) -> None:
        self._answers = iter(answers)
        self._wanted = [boxed(each) for each in wanted]

    def __call__(self, reading: Reading | None, number: int) -> str:
        if reading is None:
            return boxed(next(self._answers))
        shown = texts(reading)
        chosen = next((shown.index(each) for each in self._wanted if each in shown), None)
        return f"Solution 0 errs. Judgment: {'none' if chosen is None else chosen}"


class TestSelect:
    @pytest.mark.parametrize(
        ("answers", "contested", "read"),
        [
            ("5556", 0.5, False),
            ("5567", 0.5, False),
            ("5567", 0.6, True),
            ("5566", 0.6, True),
            ("5555", 1.0, False),
            ("5556", 1.0, True),
            ("4567", 0.0, False),
        ],
    )
    def test_solutions_are_read_where_the_vote_is_contested(self, answers: str, contested: float, read: bool) -> None:
        strategy = strategy_of(strategy="select", n=4, contested=contested)
        tree = grown(strategy, Answers(answers))
        assert bool(tree.contexts) == read
        # Nobody chooses, so the vote decides.
        assert next(iter(votes(strategy, tree))) == boxed(answers[0])

    def test_different_answers_are_shown_once_with_their_count_in_orders_of_the_seed(self) -> None:
        strategy = strategy_of(strategy="select", n=6, contested=0.6, readers=3, criteria="Brevity.")
        tree = grown(strategy, Answers("556657"))
        readings = [context.reading for context in tree.contexts]
        assert all({*texts(reading)} == {boxed(5), boxed(6), boxed(7)} for reading in readings)
        assert all(reading.sources[texts(reading).index(boxed(5))].id == (0,) for reading in readings)
        counts = {boxed(5): 3, boxed(6): 2, boxed(7): 1}
        for reading in readings:
            assert reading.counts == tuple(counts[text] for text in texts(reading))
            assert reading.note.endswith("Brevity.")
        first = [boxed(each) for each in random.Random("select:7:1").sample([5, 6, 7], 3)]
        assert [texts(reading) for reading in readings] == [first[turn:] + first[:turn] for turn in range(3)]

    def test_the_readers_decide(self) -> None:
        strategy = strategy_of(strategy="select", n=4, contested=0.6, readers=3)
        tree = grown(strategy, Answers("5567", 7))
        assert votes(strategy, tree) == {boxed(7): 3, boxed(5): 0, boxed(6): 0}
        read = strategy.reader_votes(tree)
        assert [vote.chosen for vote in read] == [(3,)] * 3
        assert all(vote.text.startswith("Solution 0 errs.") for vote in read)

    def test_readers_without_a_readable_choice_abstain(self) -> None:
        strategy = strategy_of(strategy="select", n=4, contested=0.6)
        tree = grown(strategy, Answers("5667"))
        assert votes(strategy, tree) == {boxed(6): 2, boxed(5): 1, boxed(7): 1}
        assert [vote.chosen for vote in strategy.reader_votes(tree)] == [None] * 4
        three = strategy_of(strategy="select", n=4, contested=0.6, readers=3)
        choices = iter(["Judgment: 9", "Judgment: 0\nJudgment: 1", "none"])
        tree = grown(three, lambda reading, n: boxed("5667"[n - 1]) if reading is None else next(choices))
        chosen = tree.contexts[1].reading.sources[1]
        assert [vote.chosen for vote in three.reader_votes(tree)] == [None, chosen.id, None]
        assert next(iter(votes(three, tree).items())) == (chosen.text, 1)

    def test_a_tie_of_the_readers_is_decided_by_the_vote(self) -> None:
        strategy = strategy_of(strategy="select", n=5, contested=0.9, readers=2)
        choices = iter([boxed(7), boxed(6)])

        def write(reading: Reading | None, number: int) -> str:
            return boxed("56677"[number - 1]) if reading is None else f"Judgment: {texts(reading).index(next(choices))}"

        # 6 and 7 have a reader and two solutions each: 6 was first.
        assert [*votes(strategy, grown(strategy, write)).items()][:2] == [(boxed(6), 1), (boxed(7), 1)]

    def test_the_winners_of_windows_meet_again(self) -> None:
        strategy = strategy_of(strategy="select", n=10, contested=1.0, readers=2, window=3)
        tree = grown(strategy, Answers([*"0123456", 0, 0, 1], 6, 4, 2))
        shown = [sorted(node.id[0] for node in context.reading.sources) for context in tree.contexts]
        # By frequency: 0, 1, then 2 to 6 as they came, dealt in turn over three windows, of which 6 and 4 win, and 2.
        assert shown[:6] == [[0, 3, 6]] * 2 + [[1, 4]] * 2 + [[2, 5]] * 2
        assert shown[6:] == [[2, 4, 6]] * 2
        assert [*votes(strategy, tree).items()][:2] == [(boxed(6), 2), (boxed(4), 0)]

    def test_a_window_of_one_wins_unread(self) -> None:
        strategy = strategy_of(strategy="select", n=3, contested=1.0, readers=1, window=2)
        tree = grown(strategy, Answers("567", 6))
        shown = [sorted(node.id[0] for node in context.reading.sources) for context in tree.contexts]
        assert shown == [[0, 2], [0, 1]]

    def test_texts_without_answers_are_compared_as_they_are(self) -> None:
        strategy = strategy_of(strategy="select", n=4, contested=0.9, readers=1)
        said = ["Yes, it is", "No.", "yes,  it is", "Perhaps"]
        tree = grown(strategy, lambda reading, n: said[n - 1] if reading is None else "Judgment: 0")
        [context] = tree.contexts
        assert sorted(texts(context.reading)) == ["No.", "Perhaps", "Yes, it is"]
        # Of texts without an answer only what was chosen may answer.
        assert votes(strategy, tree) == {context.reading.sources[0].text: 1}

    def test_a_solution_without_an_answer_is_no_candidate_beside_one_with_one(self) -> None:
        strategy = strategy_of(strategy="select", n=3, contested=1.0, readers=1)
        tree = grown(strategy, lambda reading, n: ["no idea", boxed(5), boxed(6)][n - 1] if reading is None else "?")
        assert sorted(texts(tree.contexts[0].reading)) == [boxed(5), boxed(6)]

    def test_a_budget_that_ends_among_the_readers_counts_those_that_read(self) -> None:
        strategy = strategy_of(strategy="select", n=4, contested=0.6)
        tree = grown(strategy, Answers("5567", 7), most=5)
        assert votes(strategy, tree) == {boxed(7): 1, boxed(5): 0, boxed(6): 0}
        assert votes(strategy, grown(strategy, Answers("5567", 7), most=3)) == {boxed(5): 2, boxed(6): 1}


def numbered(reading: Reading | None, number: int) -> str:
    return boxed(number)


def rounds_of(strategy: ReadingRounds, tree: SearchTree) -> list[list[Node | None]]:
    return [[*solutions] for solutions in strategy.grown(tree).rounds]


class TestFuse:
    def test_each_solution_reads_the_published_draw_of_the_round_before(self) -> None:
        strategy = strategy_of(strategy="fuse", n=6, k=3, rounds=2)
        tree = grown(strategy, numbered)
        first, second, third = rounds_of(strategy, tree)
        for number, (population, new) in enumerate(((first, second), (second, third)), 1):
            published = random.Random(f"fuse:7:{number}")
            drawn = [{*map(id, published.sample(population, 3))} for _ in range(6)]
            assert [{*map(id, node.context.reading.sources)} for node in new if node and node.context] == drawn
        assert {context.reading.template for context in tree.contexts} == {"fuse"}

    def test_the_last_round_votes(self) -> None:
        strategy = strategy_of(strategy="fuse", n=4, rounds=1)
        tree = grown(strategy, lambda reading, number: boxed(number if reading is None else 9 - number % 2))
        assert votes(strategy, tree) == {boxed(8): 2, boxed(9): 2}

    def test_a_schedule_reads_all_of_the_round_before_in_one_context(self) -> None:
        strategy = strategy_of(strategy="fuse", schedule=[5, 3, 1])
        tree = grown(strategy, numbered)
        assert [len(context.children) for context in tree.contexts] == [3, 1]
        assert [len(context.reading.sources) for context in tree.contexts] == [5, 3]
        assert votes(strategy, tree) == {boxed(9): 1}

    def test_one_solution_is_shown_as_one(self) -> None:
        tree = grown(strategy_of(strategy="fuse", n=3, k=1, rounds=1), numbered)
        assert {context.reading.template for context in tree.contexts} == {"refine"}

    def test_copies_count_as_often_as_they_were_written(self) -> None:
        """Solutions 1 and 2 are the same text."""
        strategy = strategy_of(strategy="fuse", n=3, k=3, rounds=1)
        tree = grown(strategy, lambda reading, number: boxed(1 if number < 3 else number))
        [context] = tree.contexts
        assert Counter(texts(context.reading)) == {boxed(1): 2, boxed(3): 1}

    def test_it_ends_where_all_agree(self) -> None:
        strategy = strategy_of(strategy="fuse", n=4, rounds=3)
        tree = grown(strategy, lambda reading, number: boxed(number if reading is None else 7))
        assert len(rounds_of(strategy, tree)) == 2
        early = strategy_of(strategy="fuse", n=4, rounds=3, contested=0.5)
        assert len(rounds_of(early, grown(early, lambda reading, number: boxed("7756"[number - 1])))) == 1

    @pytest.mark.parametrize(
        ("weights", "answers", "rewards", "copies"),
        [
            # One solution in six has nearly all of the weight: it gets ceil(0.3 * 6) places.
            ("rewards", "123456", {boxed(3): 1.0}, {2: 2}),
            # Nothing is known of any.
            ("rewards", "123456", {}, {}),
            # The six votes for 1 and one each for four others: the effective size is above half.
            ("votes", "1111112345", {}, {}),
            ("uniform", "123456", {boxed(3): 1.0}, {}),
        ],
    )
    def test_a_population_is_resampled_by_its_weights(
        self, weights: str, answers: str, rewards: dict[str, float], copies: dict[int, int]
    ) -> None:
        size = len(answers)
        strategy = strategy_of(strategy="fuse", n=size, k=size, rounds=1, weights=weights)

        def write(reading: Reading | None, number: int) -> str:
            return boxed(answers[number - 1]) if reading is None else boxed(number)

        tree = grown(strategy, write, lambda text: rewards.get(text, 0.0))
        read = Counter(node.id[0] for node in tree.contexts[0].reading.sources)
        assert sum(read.values()) == size
        for index, count in copies.items():
            assert read[index] == count
        if not copies:
            assert [*texts(tree.contexts[0].reading)] == [boxed(each) for each in answers]

    def test_rewards_are_asked_for_where_they_are_used(self) -> None:
        assert not strategy_of(strategy="fuse").is_scored
        assert strategy_of(strategy="fuse", weights="rewards").is_scored
        assert strategy_of(strategy="fuse", selection="weighted").is_scored
        assert not strategy_of(strategy="select").is_scored

    def test_a_budget_that_ends_in_a_round_lets_the_round_before_vote_too(self) -> None:
        strategy = strategy_of(strategy="fuse", n=3, k=2)
        assert votes(strategy, grown(strategy, numbered, most=5)) == {boxed(each): 1 for each in (1, 2, 3, 4, 5)}
        assert votes(strategy, grown(strategy, numbered, most=7)) == {boxed(each): 1 for each in (4, 5, 6, 7)}

    def test_a_round_that_is_cut_off_does_not_displace_the_answers_before_it(self) -> None:
        def write(reading: Reading | None, number: int) -> str:
            return "It is" if number in cut_off else boxed(number)

        strategy = strategy_of(strategy="fuse", n=2, k=2)
        for cut_off, voting in (
            ((5, 6), (3, 4)),
            ((6,), (5, 6)),
            ((3, 4, 5, 6), (1, 2)),
            ((1, 2, 3, 4, 5, 6), (5, 6)),
        ):
            tree = grown(strategy, write, cut_off=cut_off)
            assert votes(strategy, tree) == Counter(write(None, each) for each in voting)


class TestRefine:
    def test_a_chain_goes_on_from_its_best_solution_and_answers_with_it(self) -> None:
        rewards = {boxed(1): 0.5, boxed(2): 0.2, boxed(3): 0.5, boxed(4): 0.1}
        strategy = strategy_of(strategy="refine", n=1, depth=3)
        tree = grown(strategy, numbered, lambda text: rewards[text])
        # 2 is worse than 1; 3 is as good, and later.
        assert [texts(context.reading) for context in tree.contexts] == [[boxed(1)], [boxed(1)], [boxed(3)]]
        assert votes(strategy, tree) == {boxed(3): 1}
        assert "0.50" in tree.contexts[0].reading.note

    def test_without_rewards_it_goes_on_from_the_last_one(self) -> None:
        strategy = strategy_of(strategy="refine", n=2, depth=2, feedback="none", selection="majority")
        tree = grown(strategy, numbered)
        assert [texts(context.reading) for context in tree.contexts] == [[boxed(each)] for each in (1, 2, 3, 4)]
        assert votes(strategy, tree) == {boxed(5): 1, boxed(6): 1}
        assert not strategy.is_scored
        assert {context.reading.note for context in tree.contexts} == {""}

    def test_a_solution_that_was_cut_off_is_no_improvement(self) -> None:
        def write(reading: Reading | None, number: int) -> str:
            return "It is" if number == 2 else boxed(number)

        scores: Callable[[str], float]
        for feedback, scores in (("none", lambda text: 0.0), ("rewards", lambda text: float(text == "It is") / 2)):
            strategy = strategy_of(strategy="refine", n=1, depth=2, feedback=feedback)
            tree = grown(strategy, write, scores, cut_off={2})
            assert [texts(context.reading) for context in tree.contexts] == [[boxed(1)], [boxed(1)]]
            assert votes(strategy, tree) == {boxed(3): 1}
            assert votes(strategy, grown(strategy, write, scores, most=2, cut_off={2})) == {boxed(1): 1}

    def test_a_chain_ends_at_a_solution_with_score_1(self) -> None:
        strategy = strategy_of(strategy="refine", n=3, depth=2)
        tree = grown(strategy, numbered, lambda text: float(text in (boxed(2), boxed(5))))
        assert [texts(context.reading) for context in tree.contexts] == [[boxed(1)], [boxed(3)], [boxed(4)]]
        assert votes(strategy, tree) == {boxed(2): 1, boxed(5): 1, boxed(6): 1}

    def test_a_critique_comes_first_and_is_told(self) -> None:
        strategy = strategy_of(strategy="refine", n=1, depth=1, feedback="critique")

        def write(reading: Reading | None, number: int) -> str:
            return "Step 2 is wrong." if reading and reading.template == "critique" else boxed(number)

        tree = grown(strategy, write, lambda text: 0.5)
        critique, refinement = (context.reading for context in tree.contexts)
        assert (critique.template, texts(critique), critique.note) == ("critique", [boxed(1)], "")
        assert (refinement.template, texts(refinement)) == ("refine", [boxed(1)])
        assert refinement.note.endswith("Step 2 is wrong.")
        assert votes(strategy, tree) == {boxed(3): 1}

    def test_what_is_told_and_chosen_is_not_read_from_a_thought(self) -> None:
        """Also where thinking is not told from steps."""

        def critiques(reading: Reading | None, number: int) -> str:
            thought = "<think>It may be step 1.</think>\nStep 2 is wrong."
            return thought if reading and reading.template == "critique" else boxed(number)

        refine = strategy_of(strategy="refine", n=1, depth=1, feedback="critique")
        tree = grown(refine, critiques, lambda text: 0.5)
        assert tree.contexts[1].reading.note.endswith("A review of the candidate:\nStep 2 is wrong.")

        def reads(reading: Reading | None, number: int) -> str:
            return boxed(number) if reading is None else "<think>Somebody may say Judgment: 1, but"

        select = strategy_of(strategy="select", n=2, contested=1.0)
        tree = grown(select, reads)
        assert {(vote.chosen, vote.text) for vote in select.reader_votes(tree)} == {(None, "")}

    def test_what_checks_showed_is_told(self) -> None:
        strategy = strategy_of(strategy="refine", n=2, depth=1)
        tree = SearchTree(7)
        for node in tree.request(tree.root, 2):
            tree.write(node, Step((1,), boxed(node.id[0]), StepEnd.END_OF_SEQUENCE), ends=True)
            tree.complete(node, 0.5)
        assert [node.id for node in strategy.unremarked(tree)] == [(0,), (1,)]
        tree.remarks |= {(0,): "Check 1 failed.", (1,): ""}
        assert strategy.unremarked(tree) == []
        first, second = (expansion.reads for expansion in strategy.select(tree))
        assert first is not None
        assert second is not None
        assert first.note.endswith("Check 1 failed.")
        assert second.note.endswith("0.50.")

    def test_chains_at_the_same_solution_share_a_context(self) -> None:
        strategy = strategy_of(strategy="refine", n=3, depth=1)
        tree = grown(strategy, lambda reading, number: boxed(1 if reading is None else number), lambda text: 0.5)
        [context] = tree.contexts
        assert len(context.children) == 3
        assert votes(strategy, tree) == {boxed(4): 1, boxed(5): 1, boxed(6): 1}


@pytest.mark.parametrize(
    ("alias", "settings"),
    [
        ("select-8", {"strategy": "select", "n": 8}),
        ("fuse-8", {"strategy": "fuse", "n": 8}),
        ("refine-4", {"strategy": "refine", "n": 4}),
    ],
)
def test_aliases(alias: str, settings: dict[str, Any]) -> None:
    assert parse_alias(alias) == settings
    assert parse_search(settings).strategy.starts_contexts


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"strategy": "fuse", "schedule": [4, 1], "rounds": 2}, "rounds"),
        ({"strategy": "fuse", "schedule": [4, 257]}, "schedule"),
        ({"strategy": "fuse", "schedule": [1] * 34}, "schedule"),
        ({"strategy": "fuse", "weights": "luck"}, "weights"),
        ({"strategy": "fuse", "rounds": 33}, "rounds"),
        ({"strategy": "select", "window": 1}, "window"),
        ({"strategy": "select", "window": 33}, "window"),
        ({"strategy": "select", "selection": "weighted"}, "selection"),
        ({"strategy": "select", "criteria": "a" * 4097}, "criteria"),
        ({"strategy": "refine", "depth": 33}, "depth"),
        ({"strategy": "ab_mcts", "generation": "rewrite"}, "generation"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_search(settings)
    assert refused.value.errors()[0]["loc"][0] == path


def test_settings_are_read_back_as_they_were_written() -> None:
    for settings in ({"strategy": "fuse", "schedule": [32, 4, 1]}, {"strategy": "select"}, {"strategy": "refine"}):
        parsed = parse_search(settings)
        assert SearchSettings.model_validate(parsed.model_dump()) == parsed


READING: list[dict[str, Any]] = [
    {"strategy": "select", "n": 6, "contested": 1.0, "window": 3},
    {"strategy": "fuse", "n": 5, "k": 3},
    {"strategy": "fuse", "schedule": [6, 3, 1], "weights": "rewards", "selection": "weighted"},
    {"strategy": "refine", "n": 3, "feedback": "critique"},
    {"strategy": "ab_mcts", "iterations": 30, "paths": 2, "generation": "refine"},
]


@pytest.mark.parametrize("wanted", READING, ids=lambda wanted: wanted["strategy"])
def test_prompts_and_solutions_together_never_exceed_the_budget(wanted: dict[str, Any]) -> None:
    contexts = 0
    for seed, total in product(range(4), (130, 200, 300, 1200)):
        limits = {"budget": {"total_tokens": total}, "max_path_tokens": 20, "max_step_tokens": 9, "seed": seed}
        cost = search(wanted | limits)[1].cost
        assert len(PROMPT) + cost.context_prompt_tokens + cost.generated_tokens <= total
        contexts += cost.contexts
    assert contexts


@pytest.mark.parametrize("wanted", READING, ids=lambda wanted: wanted["strategy"])
def test_what_cannot_be_read_is_refused_by_name(wanted: dict[str, Any]) -> None:
    with pytest.raises(ContextsUnavailable, match=f"^{wanted['strategy']} has the model read solutions"):
        search(wanted, compose=None)


@pytest.mark.parametrize(
    ("flat", "shown"),
    [
        ({"strategy": "select"}, 8),
        ({"strategy": "select", "n": 4}, 4),
        ({"strategy": "select", "n": 32, "window": 16}, 16),
        ({"strategy": "fuse"}, 4),
        ({"strategy": "fuse", "n": 2}, 2),
        ({"strategy": "fuse", "rounds": 0}, 0),
        ({"strategy": "fuse", "schedule": [32, 4, 1]}, 32),
        ({"strategy": "fuse", "schedule": [32, 4, 1], "k": 6}, 6),
        ({"strategy": "refine"}, 1),
        ({"strategy": "ab_mcts", "generation": "refine"}, 1),
        ({"strategy": "ab_mcts"}, 0),
    ],
)
def test_a_strategy_says_how_many_solutions_a_prompt_may_show(flat: dict[str, Any], shown: int) -> None:
    assert parse_search(flat).strategy.most_shown == shown


def test_a_tree_that_an_error_cut_off_goes_on_where_it_was() -> None:
    """In the same tree, whose cache has the rounds as they were then."""
    settings, tree = {"strategy": "fuse", "n": 5, "max_depth": 1}, SearchTree()

    async def main() -> SearchOutcome:
        first, second = Bench(), Bench()
        first.generator.fail_after = 7
        assert (await first.search(settings, tree=tree)).stop_reason == "generator_error"
        return await second.search(settings, tree=tree)

    assert tree_as_json(asyncio.run(main()).tree) == tree_as_json(search(settings)[1].tree)
