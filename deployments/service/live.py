"""The settings of a controller that change while it serves."""

from deployments.config import ControllerSettings
from deployments.service.searches import SearchService


class LiveSettings:
    """The controller's settings as they are now: whoever goes by them asks every time."""

    def __init__(self, settings: ControllerSettings, service: SearchService) -> None:
        self.now = settings
        self._service = service

    def change(self, settings: ControllerSettings) -> None:
        """From the next request on; what was let in goes on."""
        self.now = settings
        queue = settings.queue
        self._service.places.resize(settings.searches, queue.places, queue.seconds, settings.flex_places)
        self._service.limit_seconds(settings.limits.seconds)
