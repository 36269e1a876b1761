"""Input kinds, service tiers and export formats of jobs."""

from enum import StrEnum


class InputKind(StrEnum):
    """Kind of the lines of a job's input."""

    PROBLEMS = "problems"
    """Questions with the answers they are graded against."""
    OPENAI = "openai"
    """Requests of an OpenAI batch file, as ``vllm run-batch`` reads them."""


class ServiceTier(StrEnum):
    """Whether the requests of a job yield to other clients' requests."""

    FLEX = "flex"
    """They yield: others have reserved places and are served first."""
    DEFAULT = "default"
    """They are treated as all others."""


class ExportFormat(StrEnum):
    """Format of exported training data."""

    BANYAN = "banyan"
    """Every tree with the values of its steps and the paths to learn from, as ``banyan eval --export`` writes."""
    TRL = "trl"
    """TRL's stepwise supervision, JSON lines: every path that has ended, each step labelled."""
    VERL = "verl"
    """verl's Parquet of prompts with their answers: a row for each problem, with how often it was solved."""
    GYM = "gym"
    """NeMo Gym's rollouts, JSON lines: every path that has ended, with the token ids and log-probabilities of its
    steps."""
