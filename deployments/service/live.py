"""Settings of a controller that can change while it serves."""

from deployments.config import ControllerSettings
from deployments.service.searches import SearchService


class LiveSettings:
    """The current settings of a controller. Read ``now`` for every request: it may have changed."""

    def __init__(self, settings: ControllerSettings, service: SearchService) -> None:
        self.now = settings
        self._service = service

    def change(self, settings: ControllerSettings) -> None:
        """Applies ``settings`` from the next request on. Admitted requests continue."""
        self.now = settings
        queue = settings.queue
        self._service.slots.resize(settings.searches, queue.places, queue.seconds, settings.flex_places)
        self._service.limit_seconds(settings.limits.seconds)
