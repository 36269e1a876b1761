"""The page of the served application: real engines, Serve's proxy in front."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import tests.ray_environment  # noqa: F401  # before Ray is imported
from tests.page.conftest import Visit, ask, figure
from tests.page.test_page import answered
from tests.serve.application import Application, problems, running


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    settings = {
        "http": {"canary_every_s": 0},
        "controller": {"store": {"path": str(tmp_path_factory.mktemp("store"))}},
    }
    with running(settings, tmp_path_factory.mktemp("keys")) as application:
        yield application


@pytest.mark.timeout(540)
@pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning", "default::DeprecationWarning")
def test_the_served_application_answers_on_its_page(application: Application, visit: Visit) -> None:
    [problem] = problems(1, seed=4, level=3)
    page = visit(application.url, refusals=True)
    page.fill("#key", application.key)
    page.get_by_role("button", name="Use it").click()
    ask(page, problem.text, seed=1, width="8")
    answer = answered(page)
    search = {"strategy": "beam_search", "n": 8}
    reply = application.chat(problem, 1, "/v1/search", search=search)
    assert answer == reply["search"]["answer"]
    distinct = [node for node in reply["tree"]["nodes"] if node["status"] != "repeated"]
    assert figure(page.locator(".state").text_content(), "distinct") == len(distinct)
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect(page.locator(".step")).to_contain_text("tokens from the generator's caches")
    page.reload()
    page.get_by_role("button", name="Kept searches").click()
    page.locator("#kept li").first.get_by_role("button", name="Open").click()
    assert answered(page) == answer
