"""No reward model: for strategies that need none, such as votes."""

from typing import TYPE_CHECKING, Literal

from deployments.engines.settings import ReplicaSettings, Settings

if TYPE_CHECKING:
    from deployments.engines.rewards.family import RewardModelSettings


class NoRewardSettings(Settings):
    """No reward model. Strategies that need rewards are refused."""

    family: Literal["none"] = "none"
    replicas: ReplicaSettings = ReplicaSettings()

    @property
    def card(self) -> None:
        """There is nothing to measure."""

    @property
    def engines(self) -> "dict[str, RewardModelSettings]":
        """None: see `RewardModelSettings.engines`."""
        return {}
