"""Names of an application's processes, from the titles that they had."""

import re
import shlex
from collections.abc import Iterable, Sequence

COMPILER = "compiler"
RAY_WORKERS = "other Ray workers"
ENGINE = "engine"
TEMPLATE = "engine template"
SPAWNED = "spawned process"
FORK = "fork of the engine template"
REPLICA = "replica "
NAMES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        # Programs that a process becomes by `exec`: until then it has its parent's title.
        (r"^(\S*/)?(cc1plus|cc1|[gc]\+\+|gcc|cc|clang(\+\+)?|collect2|ld|as)(\s|$)", COMPILER),
        (r"cdll\.LoadLibrary", COMPILER),  # Inductor's check that compiled code can be loaded
        (r"vllm\.model_executor\.models\.registry", "model inspection"),
        (r"-m lmcache\.", "LMCache server"),
        (r"kvstore\.server\.guard", "LMCache guard"),
        (r"multiprocessing\.resource_tracker", "resource tracker"),
        (r"search/(?:\w+/)*(?P<stem>\w+)_worker\.py", "{stem} worker"),
        (r"^\S*/gcs_server(\s|$)", "GCS"),
        (r"^\S*/raylet(\s|$)", "raylet"),
        (r"/autoscaler/_private/monitor\.py", "Ray autoscaler"),
        (r"/_private/log_monitor\.py", "log monitor"),
        (r"^ray-dashboard-(?P<module>\w+?)(Head)?-\d+", "dashboard {module}"),
        (r"/dashboard/dashboard\.py", "dashboard"),
        (r"ray::DashboardAgent", "dashboard agent"),
        (r"ray::RuntimeEnvAgent", "runtime environment agent"),
        (r"multiprocessing\.forkserver.*ray\.dashboard", "dashboard fork server"),
        (r"VLLM::EngineCore", ENGINE),
        (r"deployments\.engines", TEMPLATE),
        (r"ray::ServeReplica:[^:]*:(?P<deployment>SearchController|BatchRunner)", "{deployment}"),
        (r"ray::ServeReplica:[^:]*:(?P<deployment>\w+)", REPLICA + "{deployment}"),
        (r"ray::ProxyActor", "proxy"),
        (r"ray::(?!IDLE)(?P<actor>\w+)", "{actor}"),
        (r"ray::IDLE|/workers/default_worker\.py", RAY_WORKERS),
        (r"multiprocessing\.(spawn|forkserver)", SPAWNED),
        (r"/banyan serve(\s|$)", "command"),
        (r"\s-m (?P<module>[\w.]+)", "{module}"),
    )
)
"""Patterns of titles, the most telling ones first, and names with the patterns' groups."""


def process_name(titles: Sequence[str], ancestors: Iterable[str] = ()) -> str:
    """The name of a process that had these titles, in order of time, by the most telling one.

    ``ancestors``: names of its ancestors, the nearest first. An engine is named after its replica where that is known.
    """
    name, nearest = _telling(titles), list(ancestors)
    if name in (ENGINE, SPAWNED):
        owners = (each.removeprefix(REPLICA) for each in nearest if each.startswith(REPLICA))
        if owner := next(owners, None):
            return f"{ENGINE} of {owner}"
    if name == TEMPLATE and nearest[:1] == [TEMPLATE]:  # it has not changed its title
        return FORK
    return name


def _telling(titles: Sequence[str]) -> str:
    for pattern, name in NAMES:
        for title in reversed(titles):
            if found := pattern.search(title):
                return name.format(**{key: value or "" for key, value in found.groupdict().items()})
    return _program(titles[-1]) if titles else "unknown"


def _program(title: str) -> str:
    """The program and its script, without directories and options."""
    try:
        words = shlex.split(title)
    except ValueError:
        words = title.split()
    return " ".join(word.rsplit("/", 1)[-1] for word in words[:1] + [word for word in words[1:2] if "/" in word])
