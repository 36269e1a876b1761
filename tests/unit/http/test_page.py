"""The page is served to browsers as they need it, and to nobody else anything more."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import urlsplit

import httpx
import pytest
from http_world import World
from starlette.types import Message

from deployments.http.page import FOLDER, MODULES, single_file
from search.strategies.catalog import STRATEGIES
from search.strategies.solutions.greedy import Greedy

MakeWorld = Callable[..., World]
KEY = "a-key-of-sixteen-characters"
TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
MOST_LINES = 1166


class Elements(HTMLParser):
    """The start tags of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.found if (value := attributes.get(name))]


async def got(world: World, path: str, **headers: str) -> httpx.Response:
    async with world.client as client:
        return await client.get(path, headers=headers)


async def test_the_page_and_its_files_load_without_a_key(make_world: MakeWorld) -> None:
    world = make_world(keys=[KEY])
    page = await got(world, "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'data-key="yes" data-store="no"' in page.text
    named = [*Elements(page.text).values("src"), *Elements(page.text).values("href")]
    assert {"page/app.js", "page/page.css", "page/icon.svg"} <= set(named)
    for name in (*MODULES, "page.css", "icon.svg"):
        reply = await got(world, f"/page/{name}")
        assert reply.status_code == 200
        assert reply.headers["content-type"] == f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    assert (await got(world, "/v1/models")).status_code == 401


@pytest.mark.parametrize("path", ["/page/__init__.py", "/page/index.html", "/page/", "/page", "/page/x.js"])
async def test_no_other_file_is_served(world: World, path: str) -> None:
    assert (await got(world, path)).status_code == 404


@pytest.mark.parametrize(
    "path", ["/page/../v1/models", "/page//v1/models", "/page/routes.py", "/page/../../config.py", "/page/\0"]
)
async def test_the_open_paths_lead_nowhere_else(make_world: MakeWorld, path: str) -> None:
    """Sent as it is, since clients would resolve it first."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "root_path": "",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await make_world(keys=[KEY]).app(scope, receive, send)
    assert sent[0]["status"] == 404


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
async def test_browsers_ask_whether_a_file_is_the_same(world: World, path: str) -> None:
    first = await got(world, path)
    assert first.headers["cache-control"] == "no-cache"
    again = await got(world, path, **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert (await got(world, path, **{"If-None-Match": '"other"'})).status_code == 200


async def test_the_policy_forbids_what_a_text_could_do(world: World) -> None:
    for path in ("/", "/page/app.js"):
        headers = (await got(world, path)).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"


def test_nothing_in_the_document_is_inline_or_from_elsewhere() -> None:
    text = (FOLDER / "index.html").read_text()
    elements = Elements(text)
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert elements.values("style") == []
    assert "style" not in [tag for tag, _ in elements.found]
    assert all(attributes["src"] for tag, attributes in elements.found if tag == "script")
    assert not [url for name in ("src", "href") for url in elements.values(name) if urlsplit(url).netloc]
    scripts = "".join((FOLDER / name).read_text() for name in MODULES)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|https?://", scripts)
    assert scripts.count("\n") <= MOST_LINES


def test_every_strategy_can_be_chosen() -> None:
    options = [attributes for tag, attributes in Elements((FOLDER / "index.html").read_text()).found if tag == "option"]
    offered = {str(each["value"]): each.get("data-width") for each in options}
    assert {name for name in offered if not name.startswith("effort:")} == set(STRATEGIES)
    for name, strategy in STRATEGIES.items():
        width = offered[name]
        assert width in strategy.model_fields if strategy is not Greedy else width is None


async def test_a_link_from_anywhere_leads_to_the_page_and_to_nothing_else(world: World) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await got(world, "/", **link)).status_code == 200
    for path in ("/v1/models", "/page/app.js", "/docs"):
        assert (await got(world, path, **link)).status_code == 403
    assert (await got(world, "/", **(link | {"Sec-Fetch-Mode": "no-cors"}))).status_code == 403
    assert (await got(world, "/", host="rebind.example", **link)).status_code == 403


async def test_the_base_is_where_the_application_is_served(world: World) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(world.app, root_path="/banyan"), base_url="http://localhost"
    ) as client:
        for path in ("/banyan", "/banyan/"):
            assert '<base href="/banyan/">' in (await client.get(path)).text
        assert (await client.get("/banyan/page/app.js")).status_code == 200


def test_the_modules_are_listed_after_those_they_import() -> None:
    for index, name in enumerate(MODULES):
        imported = re.findall(r'from "\./(\w+\.js)"', (FOLDER / name).read_text())
        assert set(imported) <= set(MODULES[:index])


def test_one_file_has_everything_and_no_text_ends_its_script() -> None:
    text = single_file([{"question": "</script><script>owned = 1</script><!--", "events": []}])
    elements = Elements(text)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert not elements.values("src")
    assert "</script><script>owned" not in text
    assert "import " not in re.sub(r"//.*", "", text.partition('type="module">')[2].partition("</script>")[0])
