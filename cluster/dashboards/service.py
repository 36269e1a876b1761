"""Dashboards of the service: its searches, its replicas, its tenants."""

from cluster.dashboards.layout import Dashboard, panel, quantiles


def _over_one_sample(unit: str, labels: str = "") -> str:
    """The cost of searches as a multiple of one sample each."""
    search, sample = (
        f'sum(rate(ray_banyan_search_cost_{unit}_total{{app, subject="{subject}"{labels}}}[rate]))'
        for subject in ("search", "sample")
    )
    return f"{search} / {sample}"


SEARCHES = Dashboard(
    "banyan-searches",
    "Banyan: searches",
    "Number, endings and duration of searches. Ray's dashboard shows the panels 7, 8, 15 and 20 to "
    "25 on its Serve page.",
    (
        panel(
            "Finished searches",
            "reqps",
            "Searches per second, by strategy.",
            ("sum by (strategy) (rate(ray_banyan_searches_total{app}[rate]))", "{{strategy}}"),
            id=7,
        ),
        panel(
            "Refused requests and failed searches",
            "reqps",
            "Requests answered with status 400 or more, by status and code, and searches without a complete answer.",
            ("sum by (status, reason) (rate(ray_banyan_refused_requests_total{app}[rate]))", "{{status}} {{reason}}"),
            (
                'sum by (ending) (rate(ray_banyan_searches_total{app, ending!~"finished|cancelled"}[rate]))',
                "search: {{ending}}",
            ),
            id=8,
        ),
        panel(
            "Duration of searches",
            "s",
            "From the start of a search to its end.",
            *quantiles("ray_banyan_search_seconds", by="strategy"),
            id=15,
        ),
        panel(
            "Requests at the proxies",
            "short",
            "Open HTTP requests of all applications.",
            ("sum(ray_serve_num_ongoing_http_requests)", "open"),
            id=20,
        ),
        panel(
            "Search slots",
            "short",
            "Slots in use, slots in total, and requests that wait for a slot.",
            ("sum(ray_banyan_search_places_taken{app})", "in use"),
            ("sum(ray_banyan_search_places{app})", "total"),
            ("sum(ray_banyan_search_queue_waiting_requests{app})", "requests in the queue"),
            id=21,
        ),
        panel(
            "Waiting branches",
            "short",
            "Requests in the queues of generators and reward models.",
            ("sum by (deployment) (ray_banyan_engine_waiting_requests{app})", "{{deployment}}"),
            id=22,
        ),
        panel(
            "Event loop delay",
            "s",
            "By controller. New requests are refused while it exceeds controller.max_loop_delay_s.",
            ("max by (replica) (ray_banyan_event_loop_delay_seconds{app})", "{{replica}}"),
            id=23,
        ),
        panel(
            "Serve's control loop",
            "s",
            "Duration of the last control loop of Serve's controller. Seconds here delay all starts and scaling.",
            ("max(ray_serve_controller_control_loop_duration_s)", "last pass"),
            id=24,
        ),
        panel(
            "Retried calls",
            "reqps",
            "Retries of calls to generators and reward models whose replica failed.",
            ("sum by (call) (rate(ray_banyan_retries_total{app}[rate]))", "{{call}}"),
            id=25,
        ),
        panel(
            "Endings",
            "percentunit",
            "Fraction of all searches, by ending; degraded ones also have another ending.",
            (
                (
                    "sum by (ending) (rate(ray_banyan_searches_total{app}[rate])) "
                    "/ on () group_left () sum(rate(ray_banyan_searches_total{app}[rate]))"
                ),
                "{{ending}}",
            ),
            (
                (
                    'sum(rate(ray_banyan_searches_total{app, degraded="true"}[rate])) '
                    "/ sum(rate(ray_banyan_searches_total{app}[rate])) or vector(0)"
                ),
                "degraded",
            ),
        ),
        panel(
            "Rounds per search",
            "short",
            "Mean number of rounds per search, by strategy.",
            (
                (
                    "sum by (strategy) (rate(ray_banyan_search_rounds_total{app}[rate])) "
                    "/ sum by (strategy) (rate(ray_banyan_searches_total{app}[rate]))"
                ),
                "{{strategy}}",
            ),
        ),
        panel(
            "Cost over one sample",
            "short",
            "What searches with an answer cost, as a multiple of one sample each: tokens written, tokens read that no "
            "cache had, and time.",
            (_over_one_sample("tokens", ', kind="written"'), "tokens written"),
            (_over_one_sample("tokens", ', kind="read"'), "tokens read"),
            (_over_one_sample("seconds"), "time"),
        ),
        panel(
            "Steps",
            "ops",
            "Steps per second: written by generators, scored by reward models, and repeated (same text as a sibling).",
            ("sum(rate(ray_banyan_steps_written_total{app}[rate]))", "written"),
            ("sum(rate(ray_banyan_steps_scored_total{app}[rate]))", "scored"),
            ("sum(rate(ray_banyan_steps_repeated_total{app}[rate]))", "repeated"),
        ),
    ),
)

REPLICAS = Dashboard(
    "banyan-replicas",
    "Banyan: replicas and scaling",
    "Actual and target number of replicas, their load, and their status in Serve.",
    (
        panel(
            "Replicas",
            "short",
            "Healthy replicas, and the target of autoscaling.",
            ("sum by (deployment) (ray_serve_deployment_replica_healthy{app})", "{{deployment}}"),
            ("max by (deployment) (ray_serve_autoscaling_target_replicas{app})", "{{deployment}}, target"),
        ),
        panel(
            "Status",
            "short",
            "Deployments: 6 healthy, 5 and 4 scaling, 3 updating, 2 unhealthy, 1 failed. Applications: 6 running, 5 "
            "deploying, 2 unhealthy, 1 failed.",
            ("min by (deployment) (ray_serve_deployment_status{app})", "{{deployment}}"),
            ("min by (application) (ray_serve_application_status{app})", "application {{application}}"),
        ),
        panel(
            "Replica starts",
            "short",
            "Replicas started in the last 15 minutes.",
            (
                (
                    "count by (deployment) (max_over_time(ray_serve_deployment_replica_starts_total{app}[15m]) "
                    "unless max_over_time(ray_serve_deployment_replica_starts_total{app}[15m] offset 15m))"
                ),
                "{{deployment}}",
            ),
        ),
        panel(
            "Batch fill",
            "percentunit",
            "Requests per engine step as a fraction of max_num_seqs, by generator.",
            ('avg by (replica) (ray_banyan_engine_batch_fill_ratio{app, deployment="Generator"})', "{{replica}}"),
        ),
        panel(
            "Running requests by generator",
            "short",
            "Differences between replicas show how calls are routed.",
            ('sum by (replica) (ray_banyan_engine_running_requests{app, deployment="Generator"})', "{{replica}}"),
        ),
        panel(
            "Waiting requests by replica",
            "short",
            "",
            ("sum by (deployment, replica) (ray_banyan_engine_waiting_requests{app})", "{{deployment}} {{replica}}"),
        ),
        panel(
            "Calls at replicas",
            "short",
            "Calls that handles have sent, and calls that wait for a replica.",
            ("sum by (deployment) (ray_serve_num_ongoing_requests_at_replicas{app})", "{{deployment}}"),
            ("sum by (deployment) (ray_serve_deployment_queued_queries{app})", "{{deployment}}, waiting"),
        ),
        panel(
            "Duration of calls at replicas",
            "ms",
            "95th percentile, as measured by Serve.",
            (
                (
                    "histogram_quantile(0.95, sum by (le, deployment) "
                    "(rate(ray_serve_deployment_processing_latency_ms_bucket{app}[rate])))"
                ),
                "{{deployment}}",
            ),
        ),
        panel(
            "Nodes",
            "percent",
            "CPU and memory usage of each node.",
            ("max by (instance) (ray_node_cpu_utilization)", "{{instance}} CPU"),
            ("100 * max by (instance) (ray_node_mem_used / ray_node_mem_total)", "{{instance}} memory"),
        ),
    ),
)

TENANTS = Dashboard(
    "banyan-tenants",
    "Banyan: tenants",
    "Usage and refusals of API keys. A key is named by the first digits of its digest, as `banyan keys` prints it.",
    (
        panel(
            "Generated tokens",
            "short",
            "Tokens per second, by key.",
            ("sum by (key) (rate(ray_banyan_generated_tokens_total{app}[rate]))", "{{key}}"),
        ),
        panel(
            "Share of generated tokens",
            "percentunit",
            "",
            (
                (
                    "sum by (key) (rate(ray_banyan_generated_tokens_total{app}[rate])) "
                    "/ on () group_left () sum(rate(ray_banyan_generated_tokens_total{app}[rate]))"
                ),
                "{{key}}",
            ),
        ),
        panel(
            "Tokens in the last hour",
            "short",
            "Generated tokens by key, to compare with the key's tokens_per_minute.",
            ("sum by (key) (increase(ray_banyan_generated_tokens_total{app}[1h]))", "{{key}}"),
        ),
        panel(
            "Requests over a key's limits",
            "reqps",
            "Requests refused at a key's limit of concurrent requests, tokens per minute or request bodies.",
            (
                (
                    'sum(rate(ray_banyan_refused_requests_total{app, reason=~"owner|tokens_per_minute|bodies"}[rate])) '
                    "or vector(0)"
                ),
                "refused",
            ),
        ),
        panel(
            "Invalid keys",
            "reqps",
            "Requests without a valid key (401), or whose key lacks the permission (403).",
            ('sum by (status) (rate(ray_banyan_refused_requests_total{app, status=~"401|403"}[rate]))', "{{status}}"),
        ),
        panel(
            "Refused flex requests",
            "reqps",
            "Flex requests refused because the share of slots for flex is taken.",
            (
                'sum(rate(ray_banyan_refused_requests_total{app, reason="flex"}[rate])) or vector(0)',
                "flex",
            ),
        ),
    ),
)
