"""No header of a client's is an order to Serve."""

from typing import Any

import pytest

from cluster.launch.environment import variables
from deployments.http.proxy import DropOrders, is_harmless, middlewares
from search.import_path import imported

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-request-disconnect-disabled", b"?1"),
        (b"X-Request-Disconnect-Disabled", b"?1"),
        (b"x_request_disconnect_disabled", b"?1"),
        (b"x-request-timeout-seconds", b"1"),
        (b"serve_multiplexed_model_id", b"a"),
        (b"serve-multiplexed-model-id", b"a"),
        (b"x-serve-router-replica", b"a"),
        (b"x-request-id", b"\xff"),
        (b"x-session-id", b"\xc3"),
    ],
)
async def test_orders_and_what_is_not_utf8_are_dropped(name: bytes, value: bytes) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])

    kept = [(b"authorization", b"Bearer key"), (b"x-request-id", b"one"), (b"content-type", "ä".encode())]
    await DropOrders(app)({"type": "http", "headers": [kept[0], (name, value), *kept[1:]]}, None, None)  # type: ignore[arg-type]
    assert seen == [kept]


async def test_serve_is_told_of_it_and_knows_no_other_orders() -> None:
    path = variables()["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    assert imported(path) is middlewares
    assert [each.cls for each in middlewares()] == [DropOrders]
    from ray.serve._private import constants

    orders = [value for name, value in vars(constants).items() if name.startswith("SERVE_HTTP_REQUEST_")]
    assert len(orders) >= 3
    # A request's id is its client's to choose.
    assert [order for order in orders if is_harmless(order.encode(), b"1")] == [constants.SERVE_HTTP_REQUEST_ID_HEADER]
    assert not is_harmless(constants.SERVE_MULTIPLEXED_MODEL_ID.encode(), b"1")
    assert not is_harmless(f"{constants.SERVE_INGRESS_ROUTER_HEADER_PREFIX}x".encode(), b"1")
