"""The models that a backend serves, by what it says at ``/v1/models``."""

from typing import Any, NamedTuple, Protocol

from deployments.backends.errors import BackendError, Fault

CONTEXT_TOKENS = 8192
"""Context length of a model whose backend does not tell it."""
SHOWN = 10
"""Most names of models in an error message."""


class ServedModel(NamedTuple):
    """A model of a backend."""

    name: str
    context_tokens: int | None
    """Its context length; None: the backend does not tell."""


class Getter(Protocol):
    """See `deployments.backends.pool.Pool`."""

    async def get(self, path: str, *, deadline: float) -> dict[str, Any]: ...


async def find_model(calls: Getter, wanted: str | None, deadline: float) -> ServedModel:
    """The model of this name; without a name, the only one.

    Args:
        deadline: event loop time.

    Raises:
        BackendError: the backend cannot be reached, does not accept the key, or says something else.
        ValueError: it has no such model, or several and none is named.
    """
    reply = await calls.get("/v1/models", deadline=deadline)
    try:
        models = {str(each["id"]): each for each in reply["data"]}
        if wanted is None and len(models) != 1:
            raise ValueError(f"the backend serves {len(models)} models, so one has to be named: {_names(models)}")
        name = next(iter(models)) if wanted is None else wanted
        if name not in models:
            raise ValueError(f"the backend has no model {name!r}; it has: {_names(models)}")
        context = models[name].get("max_model_len")  # vLLM, SGLang
        if context is None:
            context = (models[name].get("meta") or {}).get("n_ctx_train")  # llama.cpp
    except (AttributeError, KeyError, TypeError) as error:
        raise BackendError(Fault.INVALID, "", "what it says at /v1/models has not the shape of OpenAI's API") from error
    return ServedModel(name, context if isinstance(context, int) and context > 0 else None)


def _names(models: dict[str, Any]) -> str:
    shown = sorted(models)[:SHOWN]
    return ", ".join(shown + ["…"] * (len(models) > SHOWN)) or "none"
