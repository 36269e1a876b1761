"""Random valid and invalid requests from the published schema: none gets a 5xx, and no engine restarts."""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from schemathesis import APIOperation, Case, GenerationMode

from tests.faults.processes import replicas
from tests.faults.variants import Variant
from tests.serve.application import until

MODEL = "banyan-arithmetic"
QUESTION = "Start with 1. Add 2. What is the result?"
REQUEST_S = 60.0
"""A request may take five seconds and some grace; this is long enough to prove a hang."""


@pytest.mark.timeout(3600)
def test_no_random_request_from_the_schema_fails_the_service(limited: Variant, pytestconfig: pytest.Config) -> None:
    document = limited.application.http.get(f"{limited.prefix}/openapi.json").json()
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
    assert len(operations) >= 8
    cases = pytestconfig.getoption("--schema-cases")
    plan = [(operation, mode) for operation in operations for mode in modes_of(operation)]
    engines = {each.process for each in replicas("Generator", "ProcessRewardModel")}
    statuses: Counter[tuple[str, str, int]] = Counter()
    bodies = sum(has_body(operation) for operation, _ in plan)
    small = max(1, cases // 50)
    for operation, mode in plan:
        share = (cases - small * (len(plan) - bodies)) // bodies if has_body(operation) else small
        for status in answered(limited, operation, mode, share):
            statuses[operation.path, mode.value, status] += 1
    for (path, mode_name, status), count in sorted(statuses.items()):
        print(f"{path:24} {mode_name:9} {status} {count:5}")
    assert statuses.total() >= 0.8 * cases  # shares are rounded down, and some operations have but one case
    for path in ("/v1/chat/completions", "/v1/responses"):
        assert any(status == 200 and each == path for each, _, status in statuses), path
    until(limited.is_idle, "nothing runs and nothing is left", 60.0)
    assert {each.process for each in replicas("Generator", "ProcessRewardModel")} == engines, "no engine was restarted"


def has_body(operation: APIOperation) -> bool:
    return bool(operation.body)


def modes_of(operation: APIOperation) -> list[GenerationMode]:
    """Requests that cannot be invalid have no invalid cases."""
    return list(GenerationMode) if has_body(operation) else [GenerationMode.POSITIVE]


def answered(limited: Variant, operation: APIOperation, mode: GenerationMode, cases: int) -> list[int]:
    """Statuses of ``count`` requests."""
    statuses: list[int] = []

    @seed(1)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        if mode is GenerationMode.POSITIVE:
            aim(case)
        headers = {"Authorization": f"Bearer {limited.application.key}"}
        reply = case.call(base_url=limited.url, headers=headers, timeout=REQUEST_S)
        shown = f"{reply.status_code} for {case.as_curl_command()[:2000]}: {reply.text[:500]}"
        assert reply.status_code < 500, shown
        if reply.status_code >= 400 and "application/json" in str(reply.headers.get("content-type")):
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}, shown
        statuses.append(reply.status_code)

    ask()
    return statuses


def aim(case: Case) -> None:
    """Adjusts what no schema can express and a request needs to get further: the model's name, integers without a
    decimal point, a final user message, and no value in fields that must be empty."""
    body: Any = case.body
    if not isinstance(body, dict):
        return
    for part in (body, body.get("search")):
        if isinstance(part, dict):
            part.update({name: int(value) for name, value in part.items() if is_whole(value)})
    if "model" in body:
        body["model"] = MODEL
    if not body.get("stream"):
        body.pop("stream_options", None)
    if isinstance(body.get("messages"), list) and body["messages"]:
        # An assistant's message with calls needs no content.
        body["messages"] = [{"role": each["role"], "content": each.get("content")} for each in body["messages"]]
        body["messages"][-1] = {"role": "user", "content": QUESTION}
    if "input" in body:
        body["input"] = QUESTION
    if "prompt" in body and not isinstance(body["prompt"], str | list):
        body["prompt"] = QUESTION


def is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()
