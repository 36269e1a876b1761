"""What is raised when an engine does not come up. Light: settings and reward families import it without vLLM."""


class EngineStartError(RuntimeError):
    """An engine did not come up; the message names the model and the reason."""
