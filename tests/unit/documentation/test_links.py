"""Targets of links and names of files in README and docs exist."""

import re

from tests.unit.documentation.pages import PAGES, ROOT, Mention, anchors, links, name_of, spans

FOLDERS = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[\w.*-]+)+/?")
RESULT = re.compile(r"\b[a-z_0-9]+-[0-9a-f]{7}(?:-[0-9])?\b")
"""Name of a benchmark's result: the program, the commit, and a number where it ran there again."""


def has_a_target(link: Mention) -> bool:
    path, _, anchor = link.text.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_every_link_has_a_target() -> None:
    assert len(links()) > 50
    assert [str(link) for link in links() if not has_a_target(link)] == []


def test_named_files_exist() -> None:
    named = [(span, path) for span in spans() for path in FILE.findall(span.text)]
    assert len(named) > 50
    missing = [str(span) for span, path in named if not any(ROOT.glob(path.rstrip("/")))]
    assert missing == []


def test_named_results_exist() -> None:
    named = [(page, name) for page in PAGES for name in RESULT.findall(page.read_text())]
    assert len(named) > 50
    results = {path.stem for path in (ROOT / "benchmarks/results").iterdir()}
    assert [f"{name_of(page)}: {name}" for page, name in named if name not in results] == []


def test_every_page_is_reachable_from_the_readme() -> None:
    found, seen, coming = links(), set(), [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        seen.add(page)
        to = {(page.parent / link.text.partition("#")[0]).resolve() for link in found if link.page == page}
        coming += [target for target in to & set(PAGES) if target not in seen]
    assert {name_of(page) for page in PAGES} == {name_of(page) for page in seen}
