"""The settings of a controller that change while it serves."""

from collections.abc import Callable

from deployments.config import ControllerSettings


class LiveSettings:
    """The controller's settings as they are now. Whoever asks every time keeps this; whoever is to be told, follows."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.now = settings
        self._followers: list[Callable[[ControllerSettings], None]] = []

    def follow(self, follower: Callable[[ControllerSettings], None]) -> None:
        """``follower`` is called with the settings whenever they have changed."""
        self._followers.append(follower)

    def change(self, settings: ControllerSettings) -> None:
        self.now = settings
        for follower in self._followers:
            follower(settings)
