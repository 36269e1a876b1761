"""The step hooks that come with Banyan: a calculator, and retrieval from a corpus."""

import pytest

from deployments.step_hooks.calculator import correct, end_at_mistake, mistakes
from deployments.step_hooks.retrieval import Retrieval
from search import END_PATH


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("149 * 3 = 437\n\n", ["149 * 3 = 447"]),
        ("149 * 3 = 447\n\n", []),
        ("So 2 + 3 * 4 = 20, and (2 + 3) * 4 = 20.", ["2 + 3 * 4 = 14"]),
        ("- 3 - 5 = 2\n- 3 - 5 = -2", ["3 - 5 = -2"]),
        ("1 / 3 = 0.33 and 1 / 3 = 0.34", ["1 / 3 = 0.333333"]),
        ("7 / 2 = 3", ["7 / 2 = 3.5"]),
        ("1,200 + 1 = 1,201", []),
        ("x3 + 4 = 9", []),
        ("6 * 7 = 6 * 8 - 6", []),
        ("2 ** 3 = 6, 1 / 0 = 5, 7 // 2 = 9, 1 + (2 = 3", []),
        ("3 = 4 and 50% + 1 = 2", []),
        ("It is 1 + 1 = 3 apples.", ["1 + 1 = 2"]),
        (f"{'(' * 150}1 + 1{')' * 150} = 3", []),
    ],
)
def test_the_calculator_finds_what_is_wrong_and_passes_over_what_it_cannot_read(text: str, found: list[str]) -> None:
    assert [str(mistake) for mistake in mistakes(text)] == found


async def test_the_calculator_corrects_a_step_or_ends_its_path() -> None:
    assert await correct("", (), "149 * 3 = 437\n\n") == "149 * 3 = 447\n\n"
    assert await correct("", (), "149 * 3 = 447\n\n") is None
    assert await end_at_mistake("", (), "149 * 3 = 437\n\n") is END_PATH
    assert await end_at_mistake("", (), "149 * 3 = 447\n\n") is None


FACTS = ["Ethanol boils at 78 degrees.", "Water boils at 100 degrees.", "", "Gold melts at 1064 degrees."]


async def test_retrieval_adds_the_line_that_shares_most_and_adds_it_once() -> None:
    look_up = Retrieval(FACTS)
    assert await look_up("", (), "When is it that ethanol boils?\n\n") == "Ethanol boils at 78 degrees.\n\n"
    assert await look_up("", (), "I wonder at what degrees gold melts.\n\n") == "Gold melts at 1064 degrees.\n\n"
    assert await look_up("", (), "Silver it is.\n\n") is None
    path = ("When is it that ethanol boils?\n\nEthanol boils at 78 degrees.\n\n",)
    assert await look_up("", path, "So ethanol boils early.\n\n") is None
    assert await Retrieval([])("", (), "anything") is None
