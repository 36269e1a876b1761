"""Makes the pictures of docs/page.md: ``python -m tests.page.pictures``, with playwright and Chromium."""

import re
import shutil
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from search.answers.equivalence import AnswerMatcher
from tests.page.conftest import ask
from tests.page.stand_in import LARGE, QUESTION, served
from tests.page.test_page import answered

FOLDER = Path(__file__).parents[2] / "docs" / "page"


def opened(browser: Browser, url: str, width: int, height: int, dark: bool) -> Page:
    scheme = "dark" if dark else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(url)
    return page


def growing(page: Page) -> None:
    ask(page, QUESTION, seed=7)
    expect(page.locator(".state")).to_contain_text(re.compile(r"searching · (1[5-9]|2\d) distinct"))


def read(page: Page) -> None:
    ask(page, QUESTION, seed=7)
    answered(page)
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.get_by_role("heading", name="Banyan").click()


def two(page: Page) -> None:
    page.check("#compare")
    page.select_option("#search-2 [name=how]", "mcts")
    page.fill("#search-2 [name=width]", "32")
    page.fill("#search-2 [name=seed]", "7")
    ask(page, QUESTION, seed=7)
    answered(page)
    answered(page, 1)


def large(page: Page) -> None:
    ask(page, LARGE, how="rebase", width="56")
    answered(page)


PICTURES = {
    "growing": (growing, 1440, 810, False),
    "answered": (read, 1440, 900, False),
    "two": (two, 1440, 900, True),
    "large": (large, 1440, 900, True),
    "answered-768": (read, 768, 1024, True),
    "answered-390": (read, 390, 844, False),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    matcher = AnswerMatcher()
    with tempfile.TemporaryDirectory() as store, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (prepare, width, height, dark) in PICTURES.items():
            with served(matcher, store, pause_s=0.3 if prepare is growing else 0.001) as url:
                page = opened(browser, url, width, height, dark)
                prepare(page)
                page.wait_for_timeout(200)
                picture = Image.open(BytesIO(page.screenshot(full_page=width < 1000)))
                picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
                    FOLDER / f"{name}.png", optimize=True
                )
        browser.close()
    matcher.close()


if __name__ == "__main__":
    main()
