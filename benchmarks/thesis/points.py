"""Points of the measurement: the split of KV memory, the batch size and the number of searches at once."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from deployments.config import AppConfig, merged

AS_CONFIGURED = "as configured"
COMPARISONS: dict[str, dict[str, Any]] = {
    "cache": {"cache": {"enabled": False}},
    "clamp": {"generator": {"clamp": "off"}},
    "write_ahead": {"generator": {"write_ahead": "off"}},
}
"""Settings with which ``--compare`` measures once more, by its name: the side without."""


class Application(NamedTuple):
    """A pair of engines."""

    share: float
    """The generator's share of the KV memory of both."""
    batch: int
    """``generator.max_num_seqs``."""
    side: str = AS_CONFIGURED
    """`AS_CONFIGURED`, or ``without`` and the name of a comparison."""


class Point(NamedTuple):
    """One run on a pair of engines."""

    application: Application
    clients: int
    """Searches at once."""


class Sweeps(NamedTuple):
    """Values to measure. The last of each is the base: the value at which the others are varied."""

    shares: Sequence[float]
    batches: Sequence[int]
    clients: Sequence[int]
    comparisons: Sequence[str] = ()

    @property
    def base(self) -> Application:
        return Application(self.shares[-1], self.batches[-1])

    @property
    def points(self) -> list[Point]:
        """Each point once; those of one application stand together, since starting one takes long."""
        base, most = self.base, self.clients[-1]
        found = [Point(base, clients) for clients in self.clients]
        found += [Point(base._replace(share=share), most) for share in self.shares[:-1]]
        found += [Point(base._replace(batch=batch), most) for batch in self.batches[:-1]]
        found += [Point(base._replace(side=f"without {name}"), most) for name in self.comparisons]
        return list(dict.fromkeys(found))


def by_application(points: Iterable[Point]) -> dict[Application, list[Point]]:
    found: dict[Application, list[Point]] = {}
    for point in points:
        found.setdefault(point.application, []).append(point)
    return found


def config_of(config: AppConfig, application: Application, memory: int) -> AppConfig:
    """The settings of a pair of engines. ``memory``: bytes of KV for both."""
    generator = int(application.share * memory)
    own: dict[str, Any] = {
        "generator": {"kv_cache_memory_bytes": generator, "max_num_seqs": application.batch},
        # Rewards that are remembered from the run before would hide the reward model's work.
        "prm": {"kv_cache_memory_bytes": memory - generator, "reward_cache_size": 0},
    }
    common = merged(config.model_dump(exclude_unset=True), own)
    changed = COMPARISONS.get(application.side.removeprefix("without "), {})
    return AppConfig.model_validate(merged(common, changed))
