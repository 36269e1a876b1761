"""No reward model: for strategies that need none, such as votes."""

from typing import TYPE_CHECKING, Literal

from deployments.engines.settings import ReplicaSettings, Settings

if TYPE_CHECKING:
    from deployments.engines.rewards.family import RewardModelSettings


class NoRewardSettings(Settings):
    """No reward model. Strategies that need rewards are refused."""

    family: Literal["none"] = "none"
    card: None = None
    max_num_seqs: None = None
    replicas: ReplicaSettings = ReplicaSettings()

    @property
    def engines(self) -> "dict[str, RewardModelSettings]":
        """None: see `RewardModelSettings.engines`."""
        return {}
