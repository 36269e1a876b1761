"""Whole searches over a backend that misbehaves: the tree does not depend on it, every search ends, and the key of the
backend is in nothing that a search leaves."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from backend_faults import FAULTS, IMPATIENT, KEY
from rude_server import RudeServer

from deployments.backends.errors import Fault
from deployments.backends.generator import UrlGenerator
from deployments.backends.pool import Pool
from deployments.backends.settings import BackendSettings
from search.errors import GeneratorError
from search.run.report import SearchOutcome, StopReason
from search.snapshot import save_tree, tree_as_json
from search.tree import NodeId
from tests.unit.backends.test_generator import ALL, searched
from tests.unit.backends.text_model import LocalModel, TextModel

VOTE: dict[str, Any] = {"strategy": "self_consistency", "n": 8, "seed": 3, "max_step_tokens": 12}
ENDING = {Fault.REFUSED, Fault.LATE}
"""Faults after which a branch is not written elsewhere."""
OF_ONE_URL = [behaviour for fault, streamed, behaviour in FAULTS.values() if fault not in ENDING and not streamed]


def texts(outcome: SearchOutcome) -> dict[NodeId, str]:
    return {node.id: node.text for node in outcome.tree.nodes}


def left_by(outcome: SearchOutcome, pool: Pool, folder: Path) -> Iterable[str]:
    """All that a search leaves: its tree, saved and as JSON, its cost, the state of the pool, and files."""
    yield json.dumps(tree_as_json(outcome.tree))
    yield repr(save_tree(outcome.tree))
    yield outcome.cost.model_dump_json()
    yield repr(pool.status())
    yield from (file.read_text() for file in folder.iterdir() if file.name != "key")


@pytest.fixture
def folder(tmp_path: Path) -> Iterable[Path]:
    """With the key in one file, and all logs in another."""
    (tmp_path / "key").write_text(KEY)
    root = logging.getLogger()
    handler = logging.FileHandler(tmp_path / "log")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield tmp_path
    root.removeHandler(handler)
    root.setLevel(level)
    handler.close()


@pytest.mark.parametrize("first", range(0, len(OF_ONE_URL), VOTE["n"]))
async def test_a_url_that_does_everything_wrong_changes_no_tree(first: int, folder: Path) -> None:
    local = await searched(LocalModel(), VOTE)
    async with TextModel().served() as fine, RudeServer(*OF_ONE_URL[first:]) as rude:
        urls = [{"url": rude.url, "weight": 100}, fine.status()[0].url]
        pool = Pool(BackendSettings(urls=urls, api_key_file=folder / "key", max_reply_bytes=4096, **IMPATIENT))
        outcome = await searched(UrlGenerator(pool, ALL), VOTE)
        left = [*left_by(outcome, pool, folder)]
        await pool.aclose()
    assert len(rude.requests) >= VOTE["n"]
    assert outcome.stop_reason is StopReason.FINISHED
    assert texts(outcome) == texts(local)
    assert outcome.selection.answer == local.selection.answer
    assert "EpollSelector" in "".join(left)  # the log is one of all levels
    assert not [text for text in left if KEY in text]


@pytest.mark.parametrize("name", ["500", "wrong key", "truncated JSON", "silent before headers", "body without end"])
async def test_a_search_over_one_url_that_fails_ends_in_a_typed_error(name: str, folder: Path) -> None:
    fault, _, behaviour = FAULTS[name]
    async with RudeServer(behaviour) as rude:
        pool = Pool(
            BackendSettings(url=rude.url, api_key_file=folder / "key", max_reply_bytes=4096, attempts=2, **IMPATIENT)
        )
        with pytest.raises(GeneratorError, match=rf"\({fault}\)") as caught:
            await searched(UrlGenerator(pool, ALL), VOTE)
        await pool.aclose()
    assert KEY not in f"{caught.value!r}{(folder / 'log').read_text()}"


async def test_a_search_whose_backend_fails_midway_answers_with_the_branches_that_have_arrived(folder: Path) -> None:
    async with TextModel().served() as fine:
        pool = Pool(BackendSettings(url=fine.status()[0].url, api_key_file=folder / "key", calls_per_minute=5))
        outcome = await searched(UrlGenerator(pool, ALL), {**VOTE, "budget": {"seconds": 20}})
        left = [*left_by(outcome, pool, folder)]
        await pool.aclose()
    assert outcome.partial
    assert outcome.stop_reason in (StopReason.GENERATOR_ERROR, StopReason.SECONDS)
    assert len({node.id[0] for node in outcome.tree.nodes if node.step is not None}) == 5
    assert not [text for text in left if KEY in text]
