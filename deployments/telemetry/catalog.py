"""Every metric that Banyan publishes, declared once: its name, unit, labels and meaning.

Ray publishes them as ``ray_<name>``. ``docs/monitoring.md`` has them in a table, and a test compares the two.
"""

from dataclasses import dataclass
from enum import StrEnum

from deployments.engines.histograms import REQUESTS, RESIDENCY_S, SHARES, TOKENS


class Kind(StrEnum):
    COUNTER = "counter"
    """Only grows."""
    GAUGE = "gauge"
    """Current value."""
    HISTOGRAM = "histogram"
    """Distribution of observed values, in buckets."""


class Owner(StrEnum):
    """The deployment whose replicas publish a metric: Serve's label ``deployment``."""

    CONTROLLER = "SearchController"
    ENGINES = "Generator, ProcessRewardModel"
    GENERATORS = "Generator"
    PRM = "ProcessRewardModel"


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bucket boundaries of all durations, seconds: from a step of a small model to the longest search."""


@dataclass(frozen=True, eq=False)
class Metric:
    name: str
    kind: Kind
    owner: Owner
    help: str
    labels: tuple[str, ...] = ()
    """In addition to Serve's ``application``, ``deployment`` and ``replica``."""
    boundaries: tuple[float, ...] = ()
    """Upper bucket boundaries of a histogram."""


METRICS: dict[str, Metric] = {}
"""All metrics by name."""


def _declared(
    kind: Kind, owner: Owner, name: str, meaning: str, *labels: str, boundaries: tuple[float, ...] = ()
) -> Metric:
    metric = METRICS[f"banyan_{name}"] = Metric(f"banyan_{name}", kind, owner, meaning, labels, boundaries)
    return metric


def _counter(owner: Owner, name: str, meaning: str, *labels: str) -> Metric:
    return _declared(Kind.COUNTER, owner, name, meaning, *labels)


def _gauge(owner: Owner, name: str, meaning: str, *labels: str) -> Metric:
    return _declared(Kind.GAUGE, owner, name, meaning, *labels)


def _histogram(owner: Owner, name: str, meaning: str, *labels: str, boundaries: tuple[float, ...] = SECONDS) -> Metric:
    return _declared(Kind.HISTOGRAM, owner, name, meaning, *labels, boundaries=boundaries)


_C, _E, _G, _P = Owner.CONTROLLER, Owner.ENGINES, Owner.GENERATORS, Owner.PRM

SEARCHES = _counter(
    _C,
    "searches_total",
    "Finished searches, by ending (a stop reason, the class of an error, or cancelled) and by degraded (true or false)",
    "strategy",
    "ending",
    "degraded",
)
SEARCH_SECONDS = _histogram(_C, "search_seconds", "Duration of a search, whatever its ending", "strategy")
COST_TOKENS = _counter(
    _C,
    "search_cost_tokens_total",
    "Tokens of searches that have an answer, by kind (read, without those from caches, or written) and by subject: "
    "those of the search, or those that one sample would have taken",
    "strategy",
    "subject",
    "kind",
)
COST_SECONDS = _counter(
    _C,
    "search_cost_seconds_total",
    "Duration of searches that have an answer, by subject: that of the search, or that of one sample",
    "strategy",
    "subject",
)
SEARCH_ROUNDS = _counter(
    _C, "search_rounds_total", "Rounds of searches: decisions of a strategy that led to generator calls", "strategy"
)
PLACES = _gauge(_C, "search_places", "Slots for concurrent searches (controller.searches)")
PLACES_TAKEN = _gauge(_C, "search_places_taken", "Slots for concurrent searches that are in use")
QUEUE_WAITING = _gauge(_C, "search_queue_waiting_requests", "Requests in the queue for a slot (controller.queue)")
REFUSED = _counter(
    _C,
    "refused_requests_total",
    "Requests answered with a status of 400 or more, by status and error code",
    "status",
    "reason",
)
LOOP_DELAY = _gauge(_C, "event_loop_delay_seconds", "Longest delay of the event loop since the last export")
EXPAND_SECONDS = _histogram(
    _C,
    "expand_seconds",
    "Duration of generator calls, from the request to the last child, retries included, by lane (priority in the "
    "replica's queue): first_steps of a search, or demand for all later ones; with flex_ in front for flex requests",
    "lane",
)
SCORE_SECONDS = _histogram(_C, "score_seconds", "Duration of calls to the process reward model, retries included")
STEPS_WRITTEN = _counter(_C, "steps_written_total", "Steps received from the generator")
STEPS_REPEATED = _counter(
    _C, "steps_repeated_total", "Steps with the same text as a sibling, counted when their search ends"
)
PATHS_WANDERING = _counter(
    _C, "wandering_paths_total", "Paths that beam searches ended because they wandered, counted when their search ends"
)
STEPS_SCORED = _counter(_C, "steps_scored_total", "Steps scored by the process reward model")
HOOK_CALLS = _counter(
    _C,
    "step_hook_calls_total",
    "Calls of controller.step_hook, by result: left, added, ended, raised, late or invalid. Not exported without "
    "a hook",
    "result",
)
HOOK_SECONDS = _histogram(
    _C, "step_hook_seconds", "Duration of controller.step_hook calls. Not exported without a hook"
)
GENERATED_TOKENS = _counter(
    _C,
    "generated_tokens_total",
    "Generated tokens received by searches, by the first digits of the API key's digest",
    "key",
)
RETRIES = _counter(_C, "retries_total", "Retries of calls whose replica failed", "call")
HARMFUL = _counter(
    _C,
    "harmful_requests_total",
    "Requests that crashed an engine twice, the second time while they ran alone",
)
ANSWERS_LOOKED_UP = _counter(
    _C,
    "answer_cache_lookups_total",
    "Answer cache lookups, by result: same, similar or miss. Not exported when the answer cache is disabled",
    "found",
)
ANSWERS_EVICTED = _counter(
    _C,
    "answer_cache_evictions_total",
    "Answers evicted from the answer cache, or expired. Not exported when it is disabled",
)
ANSWERS_KEPT = _gauge(_C, "answer_cache_entries", "Answers in the answer cache. Not exported when it is disabled")
ANSWERS_BYTES = _gauge(
    _C, "answer_cache_used_bytes", "Approximate memory of the answer cache. Not exported when it is disabled"
)
EMBEDDINGS_FAILED = _counter(
    _C,
    "answer_cache_embedding_failures_total",
    "Questions without an embedding because controller.answer_cache.embedding failed. Not exported when the answer "
    "cache is disabled",
)

BATCH_FILL = _gauge(
    _E, "engine_batch_fill_ratio", "Requests per engine step as a fraction of max_num_seqs, mean since the last export"
)
STEP_TOKENS = _histogram(
    _E,
    "engine_step_tokens",
    "Tokens computed per engine step: uncached prompt tokens, and one for each decoding request",
    boundaries=TOKENS,
)
STEP_REQUESTS = _histogram(_E, "engine_step_requests", "Requests per engine step", boundaries=REQUESTS)
STEP_KV_USE = _histogram(
    _E,
    "engine_step_kv_use_ratio",
    "Fraction of KV blocks held by requests, per engine step",
    boundaries=SHARES,
)
RUNNING = _gauge(_E, "engine_running_requests", "Requests that the engine is running")
WAITING = _gauge(_E, "engine_waiting_requests", "Requests that wait for a slot in the batch or for KV blocks")
KV_BLOCKS = _gauge(_E, "kv_total_blocks", "KV blocks in total")
KV_USED = _gauge(_E, "kv_used_blocks", "KV blocks held by running requests")
KV_FREE = _gauge(_E, "kv_free_blocks", "KV blocks that no running request holds; cached but unused blocks are free")
KV_RESERVED = _gauge(
    _E, "kv_reserved_blocks", "KV blocks reserved for running requests, also for tokens that they have yet to generate"
)
KV_LIFETIME = _histogram(
    _E,
    "kv_block_lifetime_seconds",
    "Time from the allocation of a KV block to its next allocation, sampled from one block in twenty",
    boundaries=RESIDENCY_S,
)
KV_IDLE = _histogram(
    _E,
    "kv_block_idle_seconds",
    "Time from the last cache hit of a KV block (from its allocation if it had none) to its next allocation, sampled "
    "from one block in twenty",
    boundaries=RESIDENCY_S,
)
KV_REUSE_GAP = _histogram(
    _E,
    "kv_block_reuse_gap_seconds",
    "Time between consecutive cache hits of a KV block, for its last four hits, observed at its next allocation and "
    "sampled from one block in twenty",
    boundaries=RESIDENCY_S,
)
HELD_BACK = _counter(
    _E,
    "clamp_held_back_branches_total",
    "Requests that waited in the replica's queue for free KV blocks: branches, or paths to be scored",
)
GIVEN_BACK = _counter(
    _G, "clamp_given_back_branches_total", "Branches rejected for lack of KV blocks (generator.clamp: shrink)"
)
RECOMPUTED = _counter(
    _E, "recomputed_tokens_total", "Tokens computed again because their KV was evicted from all caches, in whole blocks"
)
AHEAD_BEGUN = _counter(
    _G, "ahead_begun_branches_total", "Branches written ahead: started before a search requested them"
)
AHEAD_ADOPTED = _counter(_G, "ahead_adopted_branches_total", "Branches written ahead that a search then requested")
AHEAD_UNUSED = _counter(_G, "ahead_unused_tokens_total", "Tokens of branches written ahead that no search requested")
PREEMPTIONS = _counter(_E, "preemptions_total", "Requests preempted for lack of KV blocks")
PROMPT_TOKENS = _counter(_E, "engine_prompt_tokens_total", "Prompt tokens of requests, cached ones included")
ENGINE_TOKENS = _counter(_E, "engine_generated_tokens_total", "Generated tokens, discarded ones included")
CACHED_TOKENS = _counter(
    _E,
    "prefix_cached_tokens_total",
    "Prompt tokens whose KV was cached, by source: engine or lmcache",
    "source",
)
LMCACHE_UP = _gauge(
    _G,
    "lmcache_up",
    "1 if the node's LMCache server answers, else 0. Not exported when the cache is disabled",
)
LMCACHE_USED = _gauge(_G, "lmcache_used_bytes", "Memory used for KV by the node's LMCache server")
LMCACHE_CHUNKS = _counter(
    _G,
    "lmcache_chunks_total",
    "Chunks of the node's LMCache server, by event: written, read, evicted, second_tier_written or second_tier_read",
    "event",
)
CRITIQUES = _counter(_P, "critiques_total", "Critiques written by generative reward models")
CUT_CRITIQUES = _counter(
    _P,
    "cut_critiques_total",
    "Critiques of generative reward models that their token limit, the context or the deadline cut off",
)
REWARD_CACHE_HITS = _counter(_P, "reward_cache_hits_total", "Reward cache hits: paths whose rewards were all cached")
REWARD_CACHE_ENTRIES = _gauge(_P, "reward_cache_entries", "Rewards in the reward cache")
