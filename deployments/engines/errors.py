"""The error of an engine's start. A module of its own: settings and reward families import it without vLLM."""


class EngineStartError(RuntimeError):
    """An engine did not start; the message names the model and the reason."""
