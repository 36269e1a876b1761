"""The claims of `benchmarks.budgets` follow from its rows."""

from benchmarks.budgets import Row, cells_of, claims_of


def row(strategy: str, budget: int, answered: bool, right: bool, tokens: int, paths: int = 2) -> Row:
    return Row(strategy, budget, "p", answered, right, tokens, 50, paths, "tokens")


GREEDY = [row("greedy", budget, True, True, 50, 1) for budget in (960, 1024)]


def failing(before: list[Row], after: list[Row]) -> list[str]:
    before, after = GREEDY + before, GREEDY + after
    return [each["name"] for each in claims_of(cells_of(before, after), after) if not each["holds"]]


def test_a_better_side_has_no_failing_claim() -> None:
    assert failing([row("dvts", 960, False, False, 960)], [row("dvts", 960, True, True, 940)]) == []


def test_each_claim_fails_for_its_own_reason() -> None:
    good = row("dvts", 960, True, True, 900)
    assert failing([good], [good._replace(tokens=961)]) == ["searches above their budget"]
    assert failing([good], [good._replace(right=False)]) == ["strategies that are less often right at 960 tokens"]
    assert failing([good], [good._replace(paths=1)]) == ["searches of one path at twice what greedy decoding needs"]
    assert failing([good], [good._replace(stop_reason="error")]) == ["searches that failed"]
    assert failing([good._replace(right=False)], [good._replace(answered=False, right=False)]) == [
        "strategies and budgets with fewer answers than before",
        "searches without an answer at twice what greedy decoding needs",
    ]


def test_cells_have_both_sides() -> None:
    [cell] = cells_of([row("dvts", 64, False, False, 64)], [row("dvts", 64, True, False, 60)])
    assert (cell.answered, cell.right, cell.tokens) == ((0, 1), (0, 0), (64.0, 60.0))
