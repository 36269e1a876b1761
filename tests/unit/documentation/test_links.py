"""What README and docs point to is there."""

import re

import pytest

from tests.unit.documentation.pages import PAGES, ROOT, Mention, anchors, links, name_of, spans

FOLDERS = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[\w.*-]+)+/?")
MADE = ("benchmarks/results",)
"""Below these, names of files that are made as a benchmark is run, and kept only where they are quoted."""


@pytest.mark.parametrize("link", links(), ids=str)
def test_a_link_leads_somewhere(link: Mention) -> None:
    path, _, anchor = link.text.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target)


def test_files_that_are_named_are_there() -> None:
    named = [(span, path) for span in spans() for path in FILE.findall(span.text)]
    assert len(named) > 50
    missing = [str(span) for span, path in named if not any(ROOT.glob(path.rstrip("/"))) and not path.startswith(MADE)]
    assert missing == []


def test_every_page_can_be_found_from_the_readme() -> None:
    seen, coming = set(), [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        seen.add(page)
        to = {(page.parent / link.text.partition("#")[0]).resolve() for link in links() if link.page == page}
        coming += [target for target in to & set(PAGES) if target not in seen]
    assert {name_of(page) for page in PAGES} == {name_of(page) for page in seen}
