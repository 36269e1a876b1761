"""Error of starting an application."""


class LaunchError(RuntimeError):
    """The application cannot be started; the message says why and what to do."""
