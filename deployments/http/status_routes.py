"""Routes that start no search: the models, the status and the health check."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from deployments.admission.auth import check_operator
from deployments.http import replies
from deployments.http.endpoint import Served
from deployments.http.replies import json_response

router = APIRouter()


@router.get("/v1/models")
async def models(served: Served) -> Response:
    """The served model, and examples of its search aliases."""
    return json_response(replies.models(served.served_name, served.jobs.example_aliases, served.started))


@router.get("/v1/models/{name:path}")
async def model(name: str, served: Served) -> Response:
    """The served model under one of its names."""
    served.jobs.check_model(name)
    return json_response(replies.model(name, served.started))


@router.get("/v1/status")
async def status(request: Request, served: Served) -> Response:
    """Counters of every replica, and what the integrity checks find; for the operator alone."""
    check_operator(request.scope)
    return json_response(await served.operations.status())


@router.get("/health")
async def healthy(served: Served) -> Response:
    """200 when a canary token was written and a canary step scored, else 503."""
    components = await served.health.components()
    ok = all(component.ok for component in components.values())
    body = {
        "status": "ok" if ok else "failed",
        "components": {name: component.json for name, component in components.items()},
    }
    return JSONResponse(body, status_code=200 if ok else 503)
