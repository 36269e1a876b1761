"""The client reads the replies of a Banyan endpoint, and tells the kinds of failures apart."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from endpoint_stand_in import STEPS, Endpoint, tree_of

from cluster.client.client import Client
from cluster.client.errors import ClientError, Disconnected, ProtocolError, Refused, TooLate, Unreachable
from cluster.client.replies import AnswerText, Completion, Event, Question, Restarted, StepScored
from cluster.client.retries import Retries
from search.run.report import SearchCost

QUESTION = Question("1 + 1?", {"strategy": "beam_search", "n": 4}, seed=5)


ONCE = Retries(attempts=1)
THRICE = Retries(attempts=3, backoff_s=0.01, backoff_max_s=0.01)


async def ask(
    url: str,
    api_key: str | None = None,
    timeout_s: float = 10.0,
    retries: Retries = ONCE,
    question: Question = QUESTION,
) -> Completion:
    async with Client(url, api_key, timeout_s, retries=retries) as client:
        return await client.ask(question)


async def stream(url: str, timeout_s: float = 10.0, retries: Retries = ONCE) -> list[Event]:
    async with Client(url, timeout_s=timeout_s, retries=retries) as client:
        return [event async for event in client.stream(QUESTION)]


def test_a_plain_reply(endpoint: Endpoint) -> None:
    reply = asyncio.run(ask(f"{endpoint.url}/v1/"))
    assert reply.search.answer == "2"
    assert reply.search.model_extra == {"a_figure_of_tomorrow": 40}
    assert reply.search.cost_figures == SearchCost(
        nodes=3, expand_calls=2, prm_calls=2, generated_tokens=30, cached_tokens=12, seconds=0.01
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 30
    assert endpoint.requests == [
        {
            "model": "stand-in",
            "messages": [{"role": "user", "content": "1 + 1?"}],
            "search": {"strategy": "beam_search", "n": 4},
            "seed": 5,
        }
    ]


def ask_for_a_tree(url: str) -> Completion:
    async def go() -> Completion:
        async with Client(url, timeout_s=10.0) as client:
            return await client.ask(replace(QUESTION, tree=True))

    return asyncio.run(go())


def test_a_tree_is_returned_only_on_request(endpoint: Endpoint) -> None:
    assert asyncio.run(ask(endpoint.url)).tree is None
    tree = ask_for_a_tree(endpoint.url).tree
    assert tree is not None
    assert [(node.id, node.tokens, node.logprob) for node in tree.nodes] == [((0,), 4, -1.0), ((0, 0), 6, -2.0)]
    assert endpoint.requests[0] == endpoint.requests[1], "the request is the same, its route is another"


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        (None, "TreeView"),
        ([], "TreeView"),
        ({"version": 1, "nodes": []}, "version"),
        ({"version": 2}, "nodes"),
        ({"version": 2, "nodes": [{"id": [0]}]}, "nodes.0.text"),
        (
            {"version": 2, "nodes": tree_of("2")["nodes"][1:]},
            "nodes.0: its id names a position below a node that is missing",
        ),
        ({"version": 2, "nodes": tree_of("2")["nodes"] * 2}, "two nodes have the same id"),
    ],
)
def test_an_invalid_tree_is_a_protocol_error(endpoint: Endpoint, tree: Any, complaint: str) -> None:
    endpoint.trees = {"1 + 1?": tree}
    with pytest.raises(ProtocolError, match=complaint):
        ask_for_a_tree(endpoint.url)


def test_a_stream_yields_every_step_then_the_answer_then_the_completion(endpoint: Endpoint) -> None:
    events = asyncio.run(stream(endpoint.url))
    steps = [event for event in events if isinstance(event, StepScored)]
    assert [(step.node, step.text, step.reward, step.terminal) for step in steps] == list(STEPS)
    assert [type(event) for event in events[3:]] == [AnswerText, AnswerText, Completion]
    last = events[-1]
    assert isinstance(last, Completion)
    assert last.text == "1 + 1 = 2\n\n\\boxed{2} \u2028"
    assert last.usage is not None
    assert endpoint.requests[0]["stream_options"] == {"include_usage": True}


def test_a_stream_that_ends_early_raises_disconnected(endpoint: Endpoint) -> None:
    endpoint.cut_streams = 1
    with pytest.raises(ProtocolError, match="before the answer was complete"):
        asyncio.run(stream(endpoint.url))


def test_an_error_keeps_status_code_and_message_of_the_endpoint(endpoint: Endpoint) -> None:
    endpoint.refusals = [(429, {"Retry-After": "3"})]
    with pytest.raises(Refused, match="not now") as refused:
        asyncio.run(ask(endpoint.url))
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "some_code", 3.0)


def test_the_key_is_sent(endpoint: Endpoint) -> None:
    endpoint.api_key = "secret"
    with pytest.raises(Refused) as refused:
        asyncio.run(ask(endpoint.url))
    assert refused.value.status == 401
    assert asyncio.run(ask(endpoint.url, "secret")).search.answer == "2"


@pytest.mark.parametrize(
    "written", ['"secret"', "'secret'", " secret\r\n", "secret\t", "\ufeffsecret", '\ufeff" secret "\n', "\xa0secret"]
)
def test_the_key_is_sent_without_what_env_files_keep_around_it(endpoint: Endpoint, written: str) -> None:
    endpoint.api_key = "secret"
    assert asyncio.run(ask(endpoint.url, written)).search.answer == "2"


@pytest.mark.parametrize("written", ['""', "\r\n", "\ufeff"])
def test_an_empty_key_is_none(endpoint: Endpoint, written: str) -> None:
    assert asyncio.run(ask(endpoint.url, written)).search.answer == "2"


@pytest.mark.parametrize("written", ["one-key\nanother", "\u201csecret\u201d", "se\0cret"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(written: str) -> None:
    with pytest.raises(ClientError, match="an API key consists of printable ASCII") as refused:
        Client("http://127.0.0.1:1", written)
    assert written not in str(refused.value)


def test_a_request_ends_by_its_deadline(endpoint: Endpoint) -> None:
    endpoint.hang = True
    with pytest.raises(TooLate):
        asyncio.run(ask(endpoint.url, timeout_s=0.2))
    with pytest.raises(TooLate):
        asyncio.run(stream(endpoint.url, timeout_s=0.2))


def test_failures_of_the_endpoint_are_retried_under_the_same_seed(endpoint: Endpoint) -> None:
    endpoint.refusals = [(500, {}), (429, {"Retry-After": "0"})]
    reply = asyncio.run(ask(endpoint.url, retries=THRICE))
    assert reply.search.answer == "2"
    assert [body["seed"] for body in endpoint.requests] == [5, 5, 5]


def test_without_a_seed_all_attempts_share_a_random_one(endpoint: Endpoint) -> None:
    endpoint.refusals = [(503, {}), (502, {})]
    reply = asyncio.run(ask(endpoint.url, retries=THRICE, question=replace(QUESTION, seed=None)))
    assert {body["seed"] for body in endpoint.requests} == {reply.search.seed}
    assert len(endpoint.requests) == 3


def test_a_seed_in_the_search_field_is_left_alone(endpoint: Endpoint) -> None:
    asyncio.run(ask(endpoint.url, question=Question("1 + 1?", {"strategy": "greedy", "seed": 3})))
    assert "seed" not in endpoint.requests[0]


def test_a_truncated_reply_is_retried(endpoint: Endpoint) -> None:
    endpoint.dropped_replies = 1
    assert asyncio.run(ask(endpoint.url, retries=THRICE)).search.answer == "2"
    assert endpoint.requests[0] == endpoint.requests[1]
    endpoint.dropped_replies = 1
    with pytest.raises(Disconnected):
        asyncio.run(ask(endpoint.url))


def test_the_last_attempt_raises_its_error(endpoint: Endpoint) -> None:
    endpoint.refusals = [(500, {})] * 4
    with pytest.raises(Refused) as refused:
        asyncio.run(ask(endpoint.url, retries=THRICE))
    assert refused.value.status == 500
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_errors_of_the_request_are_not_retried(endpoint: Endpoint, status: int) -> None:
    endpoint.refusals = [(status, {})]
    with pytest.raises(Refused):
        asyncio.run(ask(endpoint.url, retries=THRICE))
    assert len(endpoint.requests) == 1


def test_a_429_without_retry_after_or_with_a_late_one_is_not_retried(endpoint: Endpoint) -> None:
    for headers in ({}, {"Retry-After": "60"}):
        endpoint.refusals = [(429, headers)]
        with pytest.raises(Refused):
            asyncio.run(ask(endpoint.url, retries=THRICE))
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("breaks", ["cut_streams", "broken_streams"])
def test_a_broken_stream_restarts_with_a_restarted_event(endpoint: Endpoint, breaks: str) -> None:
    setattr(endpoint, breaks, 2)
    events = asyncio.run(stream(endpoint.url, retries=THRICE))
    restarts = [index for index, event in enumerate(events) if isinstance(event, Restarted)]
    assert restarts == [3, 7], "all three steps came each time"
    undisturbed = asyncio.run(stream(endpoint.url))
    assert events[8:] == undisturbed
    assert len(endpoint.requests) == 4
    assert all(body == endpoint.requests[0] for body in endpoint.requests)


def test_a_stream_refused_before_its_first_event_has_no_restarted_event(endpoint: Endpoint) -> None:
    endpoint.refusals = [(503, {})]
    events = asyncio.run(stream(endpoint.url, retries=THRICE))
    assert not any(isinstance(event, Restarted) for event in events)


def test_an_endpoint_that_was_reached_once_is_retried_when_unreachable(endpoint: Endpoint, nobody: str) -> None:
    async def go() -> None:
        async with Client(endpoint.url, timeout_s=10.0, retries=THRICE) as client:
            await client.ask(QUESTION)
            client._http.base_url = nobody
            returns = asyncio.get_running_loop().call_later(0.005, setattr, client._http, "base_url", endpoint.url)
            assert (await client.ask(QUESTION)).search.answer == "2"
            returns.cancel()

    asyncio.run(go())


def test_a_stream_of_pings_alone_ends_at_its_deadline(endpoint: Endpoint) -> None:
    endpoint.only_pings = True
    with pytest.raises(TooLate):
        asyncio.run(stream(endpoint.url, timeout_s=0.3))
    endpoint.only_pings = False


def test_an_unreachable_endpoint_is_named(nobody: str) -> None:
    with pytest.raises(Unreachable, match="nothing listens"):
        asyncio.run(ask(nobody))


@pytest.mark.parametrize("url", ["http://[", "ftp://127.0.0.1", "nonsense", "http://127.0.0.1:99999"])
def test_an_invalid_url_is_a_client_error(url: str) -> None:
    with pytest.raises(ClientError):
        asyncio.run(ask(url))


class TestProxies:
    """The environment's proxies are checked where the client is made, and named where they cannot be used."""

    REMOTE = "http://example.invalid"

    @pytest.fixture(autouse=True)
    def no_proxies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http", "https", "all", "no"):
            monkeypatch.delenv(f"{name}_proxy", raising=False)
            monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)

    @pytest.mark.parametrize(
        ("variable", "value", "reason"),
        [
            ("ALL_PROXY", "socks5://127.0.0.1:9", r"ALL_PROXY cannot be used: .*'socksio' package is not installed"),
            ("HTTP_PROXY", "socks4://127.0.0.1:9", "HTTP_PROXY cannot be used: Unknown scheme"),
            ("https_proxy", "http://[::1", "HTTPS_PROXY cannot be used: Invalid IPv6"),
            ("ALL_PROXY", "http://127.0.0.1:99999", "ALL_PROXY cannot be used: Port out of range"),
            ("NO_PROXY", "localhost,[::1]", r"NO_PROXY cannot be used: .*IPv6 addresses are written without brackets"),
            ("no_proxy", "fe80::/10", "NO_PROXY cannot be used: .*without brackets, port and prefix length"),
        ],
    )
    def test_one_that_cannot_be_used_is_named(
        self, variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, value)
        with pytest.raises(ClientError, match=f"the environment's {reason}") as refused:
            Client(self.REMOTE)
        assert "\n" not in str(refused.value)
        Client("http://127.0.0.1:9")  # no proxy is asked for what is on this machine
        Client("http://[::1]:9")

    def test_a_password_is_not_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks4://me:secret@proxy.invalid:9")
        with pytest.raises(ClientError, match="ALL_PROXY") as refused:
            Client(self.REMOTE)
        assert "secret" not in str(refused.value)

    def test_those_that_can_be_used_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "fe80::1,::1,localhost,.internal,10.0.0.0/8")
        with pytest.raises(Unreachable):
            asyncio.run(ask(self.REMOTE))
