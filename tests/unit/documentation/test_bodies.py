"""Requests, replies, settings and programs in README and docs match what the code accepts and returns."""

import ast
import json
import logging
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cluster.client.wire import step_of
from cluster.launch import ray_runtime
from deployments.config import AppConfig, LimitSettings
from deployments.http.chat.schema import ChatRequest
from deployments.http.chat.search_settings import SettingsResolver
from deployments.startup.access import changed_settings, read_user_config
from deployments.telemetry.search_log import SearchLog
from search.prompt import Prompt
from search.run.report import SearchCost
from search.snapshot import TreeView, WrittenNode
from search.strategies.catalog import STRATEGIES
from tests.unit.documentation.pages import ROOT, Block, blocks_in

MODEL = "banyan-arithmetic"
DEPLOYMENTS = {"SearchController", "Generator", "ProcessRewardModel"}
OTHERS = {"scrape_configs", "rule_files", "providers"}
"""Configurations of Prometheus and Grafana; `tests/commands` gives the first to a Prometheus."""

Json = dict[str, Any]


def of_language(language: str) -> pytest.MarkDecorator:
    found = blocks_in(language)
    assert found
    return pytest.mark.parametrize("block", found, ids=str)


def assert_a_search(body: Json) -> None:
    """Checks that it is a valid request, including its search."""
    SettingsResolver(MODEL, STRATEGIES).settings(ChatRequest.parse(body), LimitSettings(), {})


@of_language("json")
def test_json_examples_match_the_endpoint(block: Block, caplog: pytest.LogCaptureFixture) -> None:
    shown = json.loads(block.text)
    if isinstance(shown.get("search"), dict):
        assert_a_search({"model": MODEL, "messages": [{"role": "user", "content": "6*7?"}], **shown})
    elif "search_event" in shown:
        step = step_of(shown)
        assert step is not None
        assert step.model_dump(mode="json") == {
            key: value for key, value in shown["search_event"].items() if key != "type"
        }
    elif "nodes" in shown and "version" in shown:
        assert shown.keys() == TreeView.model_fields.keys()
        for node in shown["nodes"]:  # some fields of a tree
            WrittenNode.model_validate(node)
            assert node.keys() <= WrittenNode.model_fields.keys()
    else:
        assert shown.keys() == logged(caplog).keys()


def logged(caplog: pytest.LogCaptureFixture) -> Json:
    """A line of the search log."""
    job = SimpleNamespace(search_id="", prompt=Prompt())
    names = ("key", "strategy", "n", "ending", "degraded", "rounds", "nodes")
    record: Any = SimpleNamespace(job=job, seconds=0.0, cost=SearchCost(), **dict.fromkeys(names, 0))
    with caplog.at_level(logging.INFO, "banyan.search"):
        SearchLog().write(record)
    line: Json = json.loads(caplog.messages[-1])
    return line


@pytest.fixture
def my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that the pages ask a reader to write, as they show them."""
    [strategy] = [block.text for block in blocks_in("python") if "my_package/my_search.py" in block.text]
    [reward] = [block.text for block in blocks_in("python") if block.text.startswith("async def reward")]
    [steps] = [block.text for block in blocks_in("python") if "my_package/my_steps.py" in block.text]
    [vectors] = [block.text for block in blocks_in("python") if "async def vectors" in block.text]
    [hook] = [block.text for block in blocks_in("python") if "my_package/my_hook.py" in block.text]
    [facts] = [block.text for block in blocks_in("python") if "my_package/my_facts.py" in block.text]
    [tool] = [block.text for block in blocks_in("python") if "my_package/my_tool.py" in block.text]
    typing = "from collections.abc import Sequence\nfrom typing import Literal\n"
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "my_search.py").write_text(f"{typing}from search import Expansion, SearchTree, Strategy\n{strategy}")
    (package / "my_checker.py").write_text(f"{typing}{reward}")
    (package / "my_steps.py").write_text(f"{typing}{steps}")
    (package / "embeddings.py").write_text(vectors)
    (package / "my_hook.py").write_text(hook)
    (package / "my_tool.py").write_text(tool)
    (tmp_path / "facts.txt").write_text("Ethanol boils at 78 degrees.\n")
    (package / "my_facts.py").write_text(facts.replace("/data/facts.txt", str(tmp_path / "facts.txt")))
    (package / "my_answers.py").write_text("def extract(text: str) -> str | None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@of_language("yaml")
@pytest.mark.usefixtures("my_package")
def test_yaml_examples_match_the_configuration(block: Block) -> None:
    shown = yaml.safe_load(block.text)
    [kind] = shown.keys() & {"args", "deployments", "http_options", *OTHERS} or ["a part of args"]
    if kind == "deployments":
        for deployment in shown["deployments"]:
            assert deployment["name"] in DEPLOYMENTS
            if told := deployment.get("user_config"):
                changed_settings(AppConfig(), read_user_config(with_full_digests(told)))
    elif kind == "http_options":
        assert ray_runtime.parse({**shown, "applications": []}).http_options.ssl_certfile
    elif kind not in OTHERS:
        config = AppConfig.model_validate(shown["args"] if kind == "args" else shown)
        assert config != AppConfig()
        for setting in ("catalog", "extractor"):
            assert getattr(config.controller, setting)


def with_full_digests(told: Json) -> Json:
    """A user_config with its shortened digests at full length."""
    for key in told.get("keys", ()):
        for name, length in {"digest": 64, "cache_salt": 32}.items():
            key[name] = key[name].removesuffix("…").ljust(length, "0")
    return told


@of_language("python")
def test_python_examples_compile_and_their_imports_exist(block: Block) -> None:
    """Whole programs are run by `tests/serve`."""
    for part in ast.walk(ast.parse(block.text)):
        if isinstance(part, ast.ImportFrom) and (ROOT / str(part.module).partition(".")[0]).is_dir():
            module = import_module(str(part.module))
            assert [name.name for name in part.names if name.name != "*" and not hasattr(module, name.name)] == []


BODIES = [
    (block, url.group(1), body.group(1))
    for block in blocks_in("sh")
    for command in re.findall(r"^curl (?:[^\n']|'[^']*')*", block.text, re.MULTILINE)
    if (url := re.search(r"http://127\.0\.0\.1:8000(/\S+)", command)) and (body := re.search(r"-d '([^']*)'", command))
]


def test_curl_examples_are_found() -> None:
    assert BODIES


@pytest.mark.parametrize(("block", "path", "body"), BODIES, ids=str)
def test_curl_examples_are_valid_requests(block: Block, path: str, body: str) -> None:
    shown = json.loads(body)
    if path in ("/v1/chat/completions", "/v1/search"):
        assert_a_search(shown)
