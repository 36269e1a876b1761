"""Targets of links and names of files in README and docs exist."""

import re

import pytest

from tests.unit.documentation.pages import PAGES, ROOT, Mention, anchors, links, name_of, spans

FOLDERS = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[\w.*-]+)+/?")
MADE = ("benchmarks/results",)
"""Folders of files that benchmarks write. Only files that the docs quote are in the repository."""


@pytest.mark.parametrize("link", links(), ids=str)
def test_every_link_has_a_target(link: Mention) -> None:
    path, _, anchor = link.text.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target)


def test_named_files_exist() -> None:
    named = [(span, path) for span in spans() for path in FILE.findall(span.text)]
    assert len(named) > 50
    missing = [str(span) for span, path in named if not any(ROOT.glob(path.rstrip("/"))) and not path.startswith(MADE)]
    assert missing == []


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, coming = set(), [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        seen.add(page)
        to = {(page.parent / link.text.partition("#")[0]).resolve() for link in links() if link.page == page}
        coming += [target for target in to & set(PAGES) if target not in seen]
    assert {name_of(page) for page in PAGES} == {name_of(page) for page in seen}
