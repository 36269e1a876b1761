"""Dashboards of the engines: generators, reward models, and their KV memory."""

from cluster.dashboards.layout import Dashboard, Panel, panel, quantiles


def prefixes(deployment: str) -> Panel:
    ours = f'{{app, deployment="{deployment}"}}'
    return panel(
        "Prefixes",
        "short",
        "Tokens of prefixes a second, and those of them that were computed.",
        (f"sum(rate(ray_banyan_engine_prompt_tokens_total{ours}[rate]))", "all"),
        (
            (
                f"sum(rate(ray_banyan_engine_prompt_tokens_total{ours}[rate])) "
                f"- sum(rate(ray_banyan_prefix_cached_tokens_total{ours}[rate]))"
            ),
            "computed",
        ),
    )


GENERATORS = Dashboard(
    "banyan-generators",
    "Banyan: generators",
    "Speed, batches and queues of the generators. The last panels want telemetry.engine_metrics.",
    (
        panel(
            "Generated tokens",
            "short",
            "A second: of the engines, and those that reached a search.",
            ('sum(rate(ray_banyan_engine_generated_tokens_total{app, deployment="Generator"}[rate]))', "engines"),
            ("sum(rate(ray_banyan_generated_tokens_total{app}[rate]))", "searches"),
        ),
        panel(
            "Duration of calls",
            "s",
            "From the request to the last child, by lane.",
            *quantiles("ray_banyan_expand_seconds", by="lane"),
        ),
        panel(
            "Held back and given back",
            "ops",
            "Branches that waited for KV blocks, and branches that searches did without (clamp: shrink).",
            ("sum(rate(ray_banyan_clamp_held_back_branches_total{app}[rate]))", "held back"),
            ("sum(rate(ray_banyan_clamp_given_back_branches_total{app}[rate]))", "given back"),
        ),
        panel(
            "Requests",
            "short",
            "At work and waiting.",
            ('sum(ray_banyan_engine_running_requests{app, deployment="Generator"})', "running"),
            ('sum(ray_banyan_engine_waiting_requests{app, deployment="Generator"})', "waiting"),
        ),
        panel(
            "Batch",
            "percentunit",
            "Requests in a step of the engine over max_num_seqs, by replica.",
            ('avg by (replica) (ray_banyan_engine_batch_fill_ratio{app, deployment="Generator"})', "{{replica}}"),
        ),
        prefixes("Generator"),
        panel(
            "Preemptions",
            "ops",
            "Requests that the engine put back for want of KV blocks.",
            ('sum by (replica) (rate(ray_banyan_preemptions_total{app, deployment="Generator"}[rate]))', "{{replica}}"),
        ),
        panel(
            "vLLM: time between tokens",
            "s",
            "Of all engines.",
            *(
                (
                    f"histogram_quantile({q}, sum by (le) (rate(ray_vllm_inter_token_latency_seconds_bucket[rate])))",
                    name,
                )
                for q, name in ((0.5, "median"), (0.95, "95%"))
            ),
        ),
        panel(
            "vLLM: KV cache",
            "percentunit",
            "Use by engine; cached blocks that no request holds count as free.",
            ("max by (model_name, ReplicaId) (ray_vllm_kv_cache_usage_perc)", "{{model_name}} {{ReplicaId}}"),
        ),
    ),
)

REWARD_MODELS = Dashboard(
    "banyan-reward-models",
    "Banyan: reward models",
    "How fast steps are scored, and whether searches go without rewards.",
    (
        panel(
            "Duration of calls",
            "s",
            "From a controller's request to its rewards.",
            *quantiles("ray_banyan_score_seconds"),
        ),
        panel(
            "Scored steps",
            "ops",
            "By the model, and from memory.",
            ("sum(rate(ray_banyan_steps_scored_total{app}[rate]))", "scored"),
            ("sum(rate(ray_banyan_reward_cache_hits_total{app}[rate]))", "from memory"),
        ),
        panel(
            "Searches without rewards",
            "percentunit",
            "Share of searches with a neutral reward in place of the model's.",
            (
                (
                    'sum(rate(ray_banyan_searches_total{app, degraded="true"}[rate])) '
                    "/ sum(rate(ray_banyan_searches_total{app}[rate])) or vector(0)"
                ),
                "degraded",
            ),
        ),
        panel(
            "Calls",
            "short",
            "At the replicas, and requests in their queues.",
            ('sum(ray_serve_num_ongoing_requests_at_replicas{app, deployment="ProcessRewardModel"})', "calls"),
            ('sum(ray_banyan_engine_waiting_requests{app, deployment="ProcessRewardModel"})', "waiting requests"),
        ),
        prefixes("ProcessRewardModel"),
        panel(
            "Remembered rewards",
            "short",
            "Entries of the reward cache.",
            ("sum by (replica) (ray_banyan_reward_cache_entries{app})", "{{replica}}"),
        ),
    ),
)

KV = Dashboard(
    "banyan-kv",
    "Banyan: KV memory and LMCache",
    "KV blocks of the engines, cache hits, and the nodes' LMCache servers. A node's generators all report its server: "
    "its figures are taken by node.",
    (
        panel(
            "KV blocks of the generators",
            "short",
            "Promised to branches, held by requests, and all there are.",
            ("sum(ray_banyan_kv_reserved_blocks{app})", "promised"),
            ('sum(ray_banyan_kv_used_blocks{app, deployment="Generator"})', "held"),
            ('sum(ray_banyan_kv_total_blocks{app, deployment="Generator"})', "all"),
        ),
        panel(
            "Headroom",
            "percentunit",
            "Share of free blocks, by generator.",
            (
                (
                    'min by (replica) (ray_banyan_kv_free_blocks{app, deployment="Generator"} '
                    "/ ray_banyan_kv_total_blocks{app})"
                ),
                "{{replica}}",
            ),
        ),
        panel(
            "Cached share of the prefixes",
            "percentunit",
            "By where the tokens were found.",
            (
                (
                    "sum by (deployment, source) (rate(ray_banyan_prefix_cached_tokens_total{app}[rate])) "
                    "/ on (deployment) group_left () "
                    "sum by (deployment) (rate(ray_banyan_engine_prompt_tokens_total{app}[rate]))"
                ),
                "{{deployment}}: {{source}}",
            ),
        ),
        panel(
            "Computed again",
            "short",
            "Tokens of paths a second that were computed before and were in no cache.",
            ("sum(rate(ray_banyan_recomputed_tokens_total{app}[rate]))", "tokens"),
        ),
        panel(
            "LMCache answers",
            "short",
            "1 where the node's server answers, 0 where it does not or there is none.",
            ("min by (instance) (ray_banyan_lmcache_up{app})", "{{instance}}"),
        ),
        panel(
            "LMCache memory",
            "bytes",
            "KV that each node's server keeps.",
            ("max by (instance) (ray_banyan_lmcache_used_bytes{app})", "{{instance}}"),
        ),
        panel(
            "LMCache chunks",
            "ops",
            "Written, read, evicted, and to and from the second tier, by node.",
            (
                "max by (instance, event) (rate(ray_banyan_lmcache_chunks_total{app}[rate]))",
                "{{instance}} {{event}}",
            ),
        ),
    ),
)
