"""Sends the client's requests to an application's controllers through Serve handles.

For processes that have joined the application's cluster. There is no HTTP, no proxy and no API key: a process that can
call a cluster's actors can do anything there.
"""

import asyncio
from typing import Any

import httpx
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from cluster.launch.config_file import CONTROLLER

URL = "http://127.0.0.1"
"""Placeholder where a URL is required; nothing is sent there."""


class HandleTransport(httpx.AsyncBaseTransport):
    """Carries requests to the controllers of one application. Create and use it in one event loop."""

    def __init__(self, application: str, owner: str | None = None) -> None:
        """``owner``: owner of the requests, as named in the application's store; None: the cluster."""
        self._owner = owner
        self._handle = serve.get_deployment_handle(CONTROLLER, application).options(method_name="answer")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request and returns the reply.

        Raises:
            httpx.ReadTimeout: no reply within the request's own time.
            httpx.ConnectError: the application does not exist any more.
            httpx.NetworkError: the controller was lost.
        """
        content = await request.aread()
        timeout_s = request.extensions.get("timeout", {}).get("read")
        call: Any = self._handle.remote(request.method, request.url.path, content, self._owner)
        try:
            async with asyncio.timeout(timeout_s):
                status, headers, reply = await call
        except TimeoutError:
            call.cancel()
            raise httpx.ReadTimeout("no reply in time", request=request) from None
        except asyncio.CancelledError:
            call.cancel()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise httpx.ReadError("the controller was stopped", request=request) from None
        except BackPressureError:
            return httpx.Response(429, headers={"retry-after": "1"}, request=request)
        except DeploymentUnavailableError as error:
            raise httpx.ConnectError("the application does not exist any more", request=request) from error
        except (RayError, RayServeException, ConnectionError) as error:
            raise httpx.ReadError(f"the controller was lost ({type(error).__name__})", request=request) from error
        return httpx.Response(status, headers=headers, content=reply, request=request)
