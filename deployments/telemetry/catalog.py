"""Every metric that Banyan publishes, declared once: its name, unit, labels and meaning.

Ray publishes them as ``ray_<name>``. ``docs/operating.md`` has them in a table, and a test compares the two.
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
    "Searches that ended, by how: a stop reason, the class of an error, or cancelled; degraded: true or false",
    "strategy",
    "ending",
    "degraded",
)
SEARCH_SECONDS = _histogram(_C, "search_seconds", "From the start of a search to its end, however it ends", "strategy")
SEARCH_ROUNDS = _counter(_C, "search_rounds_total", "Decisions of a strategy that led to calls", "strategy")
PLACES = _gauge(_C, "search_places", "Searches that may run at once")
PLACES_TAKEN = _gauge(_C, "search_places_taken", "Places that are taken")
QUEUE_WAITING = _gauge(_C, "search_queue_waiting_requests", "Requests that wait for a place")
REFUSED = _counter(
    _C,
    "refused_requests_total",
    "Requests answered with a status of 400 or more, by status and code",
    "status",
    "reason",
)
LOOP_DELAY = _gauge(
    _C, "event_loop_delay_seconds", "Longest time by which the event loop was late since the last publishing"
)
EXPAND_SECONDS = _histogram(
    _C, "expand_seconds", "Calls to the generator, from the request to the last child, retries included", "lane"
)
SCORE_SECONDS = _histogram(_C, "score_seconds", "Calls to the process reward model, retries included")
STEPS_WRITTEN = _counter(_C, "steps_written_total", "Steps that arrived from the generator")
STEPS_REPEATED = _counter(_C, "steps_repeated_total", "Steps that said what a sibling says; counted as a search ends")
STEPS_SCORED = _counter(_C, "steps_scored_total", "Steps that got a reward from the process reward model")
HOOK_CALLS = _counter(
    _C,
    "step_hook_calls_total",
    "Calls of controller.step_hook, by result: left, added or ended, raised, late or invalid; not told where there is "
    "none",
    "result",
)
HOOK_SECONDS = _histogram(_C, "step_hook_seconds", "Calls of controller.step_hook; likewise")
GENERATED_TOKENS = _counter(
    _C,
    "generated_tokens_total",
    "Tokens that arrived from the generator, by the first digits of the key's digest",
    "key",
)
RETRIES = _counter(_C, "retries_total", "Calls made again because a replica failed", "call")
HARMFUL = _counter(
    _C, "harmful_requests_total", "Requests that ended an engine twice, the second time while it worked on nothing else"
)
ANSWERS_LOOKED_UP = _counter(
    _C,
    "answer_cache_lookups_total",
    "Questions looked up in the answer cache, by what was found: same, similar or miss; not told where it is off",
    "found",
)
ANSWERS_EVICTED = _counter(
    _C, "answer_cache_evictions_total", "Answers that left the answer cache for want of memory, or of age; likewise"
)
ANSWERS_KEPT = _gauge(_C, "answer_cache_entries", "Answers in the answer cache; likewise")
ANSWERS_BYTES = _gauge(_C, "answer_cache_used_bytes", "Memory of the answer cache, about; likewise")
EMBEDDINGS_FAILED = _counter(
    _C,
    "answer_cache_embedding_failures_total",
    "Questions that got no vector from controller.answer_cache.embedding, and were searched for; likewise",
)

BATCH_FILL = _gauge(
    _E, "engine_batch_fill_ratio", "Requests in an engine step over max_num_seqs, mean since the last publishing"
)
STEP_TOKENS = _histogram(
    _E,
    "engine_step_tokens",
    "Tokens that an engine step computed: uncached ones of prompts, and one for each request that goes on",
    boundaries=TOKENS,
)
STEP_REQUESTS = _histogram(_E, "engine_step_requests", "Requests in an engine step", boundaries=REQUESTS)
STEP_KV_USE = _histogram(
    _E,
    "engine_step_kv_use_ratio",
    "Share of the KV blocks that requests held in an engine step",
    boundaries=SHARES,
)
RUNNING = _gauge(_E, "engine_running_requests", "Requests that the engine works on")
WAITING = _gauge(_E, "engine_waiting_requests", "Requests that wait for a slot in the batch or for KV blocks")
KV_BLOCKS = _gauge(_E, "kv_total_blocks", "KV blocks of the engine")
KV_USED = _gauge(_E, "kv_used_blocks", "KV blocks that running requests hold")
KV_FREE = _gauge(_E, "kv_free_blocks", "Headroom: blocks that no running request holds; cached but idle ones are free")
KV_RESERVED = _gauge(_E, "kv_reserved_blocks", "KV blocks that requests were promised, of those there are")
KV_LIFETIME = _histogram(
    _E,
    "kv_block_lifetime_seconds",
    "From the allocation of a KV block to its next one, of one in twenty blocks",
    boundaries=RESIDENCY_S,
)
KV_IDLE = _histogram(
    _E,
    "kv_block_idle_seconds",
    "From the last cache hit of a KV block, or from its allocation if it had none, to its next allocation; likewise",
    boundaries=RESIDENCY_S,
)
KV_REUSE_GAP = _histogram(
    _E,
    "kv_block_reuse_gap_seconds",
    "Between two of the last four cache hits of a KV block; likewise",
    boundaries=RESIDENCY_S,
)
HELD_BACK = _counter(
    _E, "clamp_held_back_branches_total", "Branches, or paths to be scored, that had to wait for KV blocks"
)
GIVEN_BACK = _counter(
    _G, "clamp_given_back_branches_total", "Branches that searches had to do without for want of KV blocks"
)
RECOMPUTED = _counter(
    _E, "recomputed_tokens_total", "Tokens of paths, in whole blocks, that were computed before and were in no cache"
)
AHEAD_BEGUN = _counter(_G, "ahead_begun_branches_total", "Branches begun before a search asked for them")
AHEAD_ADOPTED = _counter(_G, "ahead_adopted_branches_total", "Those of them that a search asked for")
AHEAD_UNUSED = _counter(_G, "ahead_unused_tokens_total", "Tokens of those that none asked for")
PREEMPTIONS = _counter(_E, "preemptions_total", "Requests that the engine put back for want of KV blocks")
PROMPT_TOKENS = _counter(_E, "engine_prompt_tokens_total", "Tokens of the requests' prefixes")
ENGINE_TOKENS = _counter(
    _E, "engine_generated_tokens_total", "Tokens that the engine generated, discarded ones included"
)
CACHED_TOKENS = _counter(
    _E,
    "prefix_cached_tokens_total",
    "Of the prefixes, tokens whose KV was cached, by where: engine or lmcache",
    "source",
)
LMCACHE_UP = _gauge(
    _G,
    "lmcache_up",
    "1 where the node's LMCache server answers, 0 where it does not or there is none; not told where `cache` is off",
)
LMCACHE_USED = _gauge(_G, "lmcache_used_bytes", "KV that the node's LMCache server keeps in memory")
LMCACHE_CHUNKS = _counter(
    _G,
    "lmcache_chunks_total",
    "Chunks at the node's LMCache server, by what happened: written or read, for engines or a second tier; evicted; "
    "second_tier_written, second_tier_read",
    "event",
)
CRITIQUES = _counter(_P, "critiques_total", "Critiques that a generative reward model wrote for scored steps")
CUT_CRITIQUES = _counter(
    _P, "cut_critiques_total", "Those of them that the budget of tokens, the context or the deadline cut off"
)
REWARD_CACHE_HITS = _counter(_P, "reward_cache_hits_total", "Items that were scored from memory")
REWARD_CACHE_ENTRIES = _gauge(_P, "reward_cache_entries", "Rewards that are remembered")
