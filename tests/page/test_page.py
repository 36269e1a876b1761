"""What the page does, in a browser, with the endpoint's own routes behind it."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from typer.testing import CliRunner

from cluster.cli.main import app
from tests.page.conftest import KEY, Visit, ask, direct, figure
from tests.page.stand_in import FRAMED, HOSTILE, LARGE, QUESTION, TEXTS

BEAM = {"strategy": "beam_search", "n": 16}
SLOWEST_FRAME_MS = 100


def answered(page: Page, number: int = 0) -> str:
    """Waits for the answer of a search, and returns it."""
    pane = page.locator(".pane").nth(number)
    expect(pane.locator(".state")).to_contain_text("answered")
    return pane.locator(".answer").text_content() or ""


def test_the_tree_grows_before_the_answer_is_there(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    expect(page.locator(".empty")).to_be_visible()
    ask(page, QUESTION)
    expect(page.locator(".state")).to_contain_text(re.compile(r"searching · [1-9]\d* distinct steps"))
    expect(page.locator(".result")).to_be_hidden()
    answer = answered(page)
    reply = direct(endpoint, QUESTION, BEAM)
    assert answer == reply["search"]["answer"]
    distinct = [node for node in reply["tree"]["nodes"] if node["status"] != "repeated"]
    assert figure(page.locator(".state").text_content(), "distinct") == len(distinct)
    votes = page.locator(".vote li")
    assert votes.count() == len(reply["search"]["answers"])
    assert votes.first.locator("bdi").text_content() == answer
    assert page.locator(".result dd").first.text_content() == f"{reply['search']['generated_tokens']:,}"
    block = reply["search"]
    cost, sample = (page.locator(".result dd").nth(at).text_content() or "" for at in (4, 5))
    assert cost.startswith(f"{block['written_tokens']:,} tokens written, ")
    assert sample.startswith(f"{block['sample_tokens']:,.0f} tokens written, {block['prompt_tokens']:,} read, ")


WIDTHS = "buttons => buttons.map(each => parseFloat(getComputedStyle(each, '::before').width) / each.clientWidth)"


@pytest.mark.parametrize(
    ("selection", "words"),
    [("weighted", "% of weight"), ("majority", "% of samples"), ("naive", "best 0.")],
)
def test_the_bars_of_the_answers_are_what_decided(endpoint: str, visit: Visit, selection: str, words: str) -> None:
    page = visit(endpoint)
    search = {"strategy": "best_of_n", "n": 16, "selection": selection}
    ask(page, QUESTION, how="best_of_n", width="16", more=json.dumps({"selection": selection}))
    answer = answered(page)
    answers = direct(endpoint, QUESTION, search)["search"]["answers"]
    assert len(answers) > 1
    buttons = page.locator(".vote button")
    widths = buttons.evaluate_all(WIDTHS)
    assert widths == pytest.approx([each["vote"] for each in answers], abs=0.01)
    assert widths == sorted(widths, reverse=True)
    assert buttons.first.locator("bdi").text_content() == answer
    assert (buttons.first.locator("small").text_content() or "").partition(" · ")[0].find(words) >= 0


def test_the_slider_shows_every_moment(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    ask(page, QUESTION)
    answered(page)
    slider, state = page.get_by_role("slider"), page.locator(".state")
    whole = figure(state.text_content(), "distinct")
    slider.fill("0")
    expect(state).to_contain_text("0 distinct steps")
    slider.fill("20")
    expect(page.locator("output")).to_contain_text("20 of")
    assert 0 < figure(state.text_content(), "distinct") < whole
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("output")).to_contain_text("21 of")
    page.keyboard.press("End")
    expect(state).to_contain_text(f"{whole} distinct steps")
    page.get_by_role("button", name="Play").click()
    expect(state).not_to_contain_text(f"{whole} distinct steps")
    expect(state).to_contain_text(f"{whole} distinct steps")


def test_a_step_is_read_by_keyboard_and_by_mouse(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    ask(page, QUESTION)
    answered(page)
    reply = direct(endpoint, QUESTION, BEAM | {"logprobs": True})
    nodes = {".".join(map(str, node["id"])): node for node in reply["tree"]["nodes"]}
    page.get_by_role("tree").focus()
    for key in ("End", "ArrowLeft", "ArrowDown", "Home", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
    page.keyboard.press("End")
    best = nodes[".".join(map(str, reply["search"]["node"]))]
    step = page.locator(".step")

    def is_shown() -> None:
        expect(step.locator("h3")).to_have_text("Step " + ".".join(map(str, best["id"])))
        assert step.locator("pre").first.text_content() == best["text"]
        facts = dict(zip(step.locator("dt").all_text_contents(), step.locator("dd").all_text_contents(), strict=True))
        assert facts["reward"] == f"{best['reward']:.3f}"
        assert facts["log-probability"].startswith(f"{best['logprob']:.2f} (")
        assert facts["tokens"] == str(best["tokens"])
        assert facts["written"].startswith(f"{best['count']} times")
        assert "the path ends here" in facts["state"]
        assert re.fullmatch(r"\d+ of \d+ tokens from the generator's caches, \d+ computed", facts["prefix"])

    is_shown()
    path = [nodes[".".join(map(str, best["id"][:depth]))] for depth in range(1, len(best["id"]) + 1)]
    step.locator("summary").click()
    assert step.locator("pre").last.text_content() == "".join(node["text"] for node in path)
    item = page.get_by_role("treeitem")
    expect(item).to_have_attribute("aria-level", str(len(best["id"]) + 1))
    assert best["text"].strip() in (item.get_attribute("aria-label") or "")
    page.get_by_role("tree").focus()
    page.keyboard.press("Enter")
    expect(step).to_be_focused()
    page.wait_for_timeout(500)  # until the nodes stand still
    box = item.bounding_box()
    assert box is not None
    page.keyboard.press("Escape")
    expect(step).to_be_hidden()
    expect(page.get_by_role("tree")).to_be_focused()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    is_shown()


def test_two_searches_stand_side_by_side(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    page.check("#compare")
    page.select_option("#search-2 [name=how]", "mcts")
    page.fill("#search-2 [name=seed]", "5")
    ask(page, QUESTION)
    answers = [answered(page, number) for number in (0, 1)]
    assert page.locator(".pane h2").all_text_contents() == [
        "beam search · n 16 · seed 3",
        "mcts · iterations 64 · seed 5",
    ]
    replies = [
        direct(endpoint, QUESTION, BEAM),
        direct(endpoint, QUESTION, {"strategy": "mcts", "iterations": 64}, seed=5),
    ]
    assert answers == [reply["search"]["answer"] for reply in replies]
    boxes = [pane.bounding_box() for pane in page.locator(".stage").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


def test_budget_effort_and_settings_are_sent(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    sent: list[dict[str, object]] = []
    page.on("request", lambda request: sent.append(json.loads(request.post_data)) if request.post_data else None)
    ask(page, QUESTION, more='{"m": 2}', tokens="5000", nodes="50", seconds="9.5")
    answered(page)
    budget = {"tokens": 5000, "nodes": 50, "seconds": 9.5}
    assert sent[0]["search"] == {"strategy": "beam_search", "n": 16, "m": 2, "budget": budget, "logprobs": True}
    assert "store" in sent[0]
    page.uncheck("[name=keep]")
    page.fill("#search-1 [name=more]", "")
    ask(page, QUESTION, how="effort:low")
    expect(page.locator(".pane h2")).to_have_text("low effort · seed 3")
    answered(page)
    assert sent[1]["reasoning_effort"] == "low"
    assert not {"strategy", "n"} & sent[1]["search"].keys()  # type: ignore[attr-defined]
    assert "store" not in sent[1]
    ask(page, QUESTION, how="dvts", more="{")
    expect(page.locator("#problem")).to_contain_text("JSON")


def test_what_the_endpoint_refuses_is_shown(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint, refusals=True)
    ask(page, QUESTION, more='{"temprature": 1}')
    expect(page.locator(".stage .problem")).to_contain_text("temprature")
    expect(page.locator(".state")).to_have_text("failed")


def test_a_kept_search_is_opened_again(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    ask(page, QUESTION, seed=11)
    answer = answered(page)
    state = page.locator(".state").text_content() or ""
    votes = page.locator(".vote li").all_text_contents()
    page.reload()
    page.get_by_role("button", name="Kept searches").click()
    first = page.locator("#kept li").first
    expect(first.locator("bdi")).to_have_text(QUESTION)
    first.get_by_role("button", name="Open").click()
    assert answered(page) == answer
    expect(page.locator(".state")).to_have_text(state)
    assert page.locator(".vote li").all_text_contents() == votes
    expect(page.locator(".pane h2")).to_contain_text("seed 11")
    page.get_by_role("button", name="Kept searches").click()
    page.locator("#kept li").first.get_by_role("button", name="Beside").click()
    assert answered(page, 1) == answer
    assert page.locator(".pane").count() == 2


def test_stopping_ends_the_search_at_the_endpoint(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    ask(page, LARGE, how="rebase", width="200")
    expect(page.locator(".state")).to_contain_text(re.compile(r"searching · [1-9]"))
    page.click("#stop")
    expect(page.locator(".stage .problem")).to_have_text("stopped")
    page.get_by_role("button", name="Kept searches").click()
    expect(page.locator("#kept li").first).to_contain_text(re.compile("cancelled|running"))


def test_hostile_text_stays_text(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    ask(page, HOSTILE, width="64")
    answered(page)
    assert_only_text(page)


def assert_only_text(page: Page) -> None:
    """Reads the steps of the first level, which have all of the hostile texts."""
    page.get_by_role("tree").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    hints: dict[str, str] = {}
    for _ in TEXTS:
        text = page.locator(".step pre").first.text_content() or ""
        hints[text] = page.locator(".step .hint").inner_text()
        box = page.locator(".step").bounding_box()
        assert box is not None
        assert box["height"] < 900
        page.keyboard.press("ArrowDown")
    assert set(hints) == {f"{text}\n\n" for text in TEXTS}
    assert {text for text, hint in hints.items() if hint} == {f"{FRAMED}\n\n"}
    assert hints[f"{FRAMED}\n\n"] == "5 invisible characters in this text"
    assert page.evaluate("window.owned") is None
    assert page.title() == "Banyan"
    assert page.locator("main img, main script, main svg, main a, main style, main iframe").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_the_page_asks_for_a_key_and_keeps_it_in_its_tab(keyed: str, visit: Visit) -> None:
    page = visit(keyed, refusals=True)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    page.fill("#key", "a-wrong-key-of-some-length")
    page.get_by_role("button", name="Use it").click()
    expect(dialog).to_be_hidden()
    ask(page, QUESTION)
    expect(page.locator("#key-problem")).to_contain_text("key is not valid")
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    assert answered(page) == direct(keyed, QUESTION, BEAM, key=KEY)["search"]["answer"]
    stored = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]")
    assert stored == [json.dumps({"banyan-key": KEY}, separators=(",", ":")), "{}", ""]
    page.reload()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Kept searches").click()
    expect(page.locator("#kept li")).to_have_count(1)
    expect(visit(keyed).get_by_role("dialog")).to_be_visible()


FRAMES = """() => {
  window.frames_ms = [];
  let before = performance.now();
  const next = (now) => { window.frames_ms.push(now - before); before = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""


def test_no_frame_is_slow_while_2000_nodes_grow(fast_endpoint: str, visit: Visit, browser: Browser) -> None:
    """Frames are measured by the processor time of their tasks in the page's thread, which is what the page can be
    blamed for: other processes may take the processor at any time. The clock's time between frames is printed."""
    page = visit(fast_endpoint)
    browser.start_tracing(page=page, categories=["toplevel", "__metadata"])
    page.evaluate(FRAMES)
    ask(page, LARGE, how="rebase", width="210")
    answered(page)
    assert figure(page.locator(".state").text_content(), "distinct") >= 2000
    page.get_by_role("slider").fill("900")
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_timeout(300)
    frames = sorted(page.evaluate("window.frames_ms")[1:])
    trace = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {(each["pid"], each["tid"]): each["args"]["name"] for each in trace if each["name"] == "thread_name"}
    mine = [each for each in trace if threads.get((each["pid"], each["tid"])) == "CrRendererMain"]
    tasks = sorted(each["tdur"] / 1000 for each in mine if "tdur" in each)
    print(
        f"{len(frames)} frames; between them {frames[len(frames) // 2]:.0f} ms, at most {frames[-1]:.0f} ms; "
        f"a task's processor time at most {tasks[-1]:.0f} ms"
    )
    assert len(frames) > 40
    assert tasks[-1] <= SLOWEST_FRAME_MS


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 768, 390])
def test_nothing_is_wider_than_the_screen(endpoint: str, visit: Visit, width: int, scheme: str) -> None:
    page = visit(endpoint, width, color_scheme=scheme, has_touch=width < 500)
    page.check("#compare")
    ask(page, HOSTILE)
    answered(page)
    answered(page, 1)
    page.locator(".pane").first.get_by_role("tree").focus()
    page.keyboard.press("End")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (brightness > 128) == (scheme == "light")
    if width < 500:
        small = "[...document.querySelectorAll('button, select')].filter((b) => b.offsetParent && b.offsetHeight < 36)"
        assert page.evaluate(f"{small}.length") == 0


def test_every_control_has_a_name_and_is_reached_by_tab(endpoint: str, visit: Visit) -> None:
    page = visit(endpoint)
    names = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        names.add(
            page.evaluate(
                "(() => { const e = document.activeElement; return e.ariaLabel || e.labels?.[0]?.textContent.trim() "
                "|| e.textContent.trim(); })()"
            )
        )
    assert "" not in names
    assert {"Question", "n", "seed", "Ask", "Zoom in", "Fit", "Time, in events", "Kept searches"} <= names
    assert any(name.startswith("Search tree") for name in names)


def test_layouts_are_tidy(endpoint: str, visit: Visit) -> None:
    """No two nodes of a level touch, siblings keep their order, and parents stand in the middle of their children."""
    page = visit(endpoint)
    for seed in range(20):
        parents = page.evaluate(
            """async (seed) => {
              const { tidy } = await import("./page/layout.js");
              let state = seed + 1;
              const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
              const nodes = [{ below: [] }];
              for (let index = 1; index < 400; index++) {
                const node = { below: [] };
                nodes[Math.floor(random() ** 1.5 * nodes.length)].below.push(node);
                nodes.push(node);
              }
              tidy(nodes[0]);
              return nodes.map((node) => [node.level, node.breadth, node.below.map((child) => child.breadth)]);
            }""",
            seed,
        )
        levels: dict[int, list[float]] = {}
        for level, breadth, below in parents:
            levels.setdefault(level, []).append(breadth)
            assert below == sorted(below)
            assert not below or breadth == pytest.approx((below[0] + below[-1]) / 2)
        for row in levels.values():
            assert all(right - left >= 1 - 1e-6 for left, right in pairwise(sorted(row)))


def test_an_export_is_written_as_one_file_and_opens_without_a_server(
    endpoint: str, visit: Visit, saved_file: Path
) -> None:
    page = visit(endpoint)
    ask(page, HOSTILE, width="64")
    answer = answered(page)
    state = page.locator(".state").text_content() or ""
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(saved_file)
    [exported] = json.loads(saved_file.read_text())["searches"]
    assert exported["question"] == HOSTILE
    assert exported["search"]["answer"] == answer
    assert as_page(visit, saved_file, state) == answer


def test_trees_of_replies_and_jobs_and_kept_events_are_written_as_one_file(
    endpoint: str, visit: Visit, saved_file: Path
) -> None:
    page = visit(endpoint)
    ask(page, QUESTION)
    answer = answered(page)
    state = page.locator(".state").text_content() or ""
    reply = direct(endpoint, QUESTION, BEAM)
    saved_file.write_text(json.dumps(reply))
    assert as_page(visit, saved_file, state) == answer
    result = {"line": 2, "problem": QUESTION, "strategy": "beam_search", "answer": answer, "tree": reply["tree"]}
    result |= {"seed": 3, "text": reply["choices"][0]["message"]["content"]}
    saved_file.write_text("".join(json.dumps({**result, "line": line}) + "\n" for line in (1, 2)))
    assert as_page(visit, saved_file, state, "--line", "2") == answer
    listed = page.evaluate("fetch('v1/searches').then((reply) => reply.json())")
    events = page.evaluate(f"fetch('v1/searches/{listed['data'][0]['id']}/events').then((reply) => reply.text())")
    saved_file.write_text(events)
    assert as_page(visit, saved_file, state) == answer


def as_page(visit: Visit, file: Path, state: str, *options: str) -> str | None:
    """Runs ``banyan tree``, opens what it writes, and returns the answer there."""
    result = CliRunner().invoke(app, ["tree", str(file), *options])
    assert result.exit_code == 0, result.output
    page = visit(file.with_suffix(".html").as_uri())
    expect(page.locator(".state")).to_contain_text(state.rpartition("·")[0].removeprefix("answered · ").strip())
    expect(page.locator("form#ask")).to_be_hidden()
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect(page.locator(".step")).to_be_visible()
    return page.locator(".result .answer").text_content()
