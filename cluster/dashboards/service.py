"""Dashboards of the service: its searches, its replicas, its tenants."""

from cluster.dashboards.layout import Dashboard, panel, quantiles

SEARCHES = Dashboard(
    "banyan-searches",
    "Banyan: searches",
    "How many searches run, how they end and how long they take. Ray's dashboard shows the panels 7, 8, 15 and 20 to "
    "25 on its Serve page.",
    (
        panel(
            "Searches that end",
            "reqps",
            "By strategy.",
            ("sum by (strategy) (rate(ray_banyan_searches_total{app}[rate]))", "{{strategy}}"),
            id=7,
        ),
        panel(
            "Refused requests and failed searches",
            "reqps",
            "Requests with a status of 400 or more by status and code, and searches that end in no complete answer.",
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
            "Places",
            "short",
            "Searches at once, what there is, and requests that wait for a place.",
            ("sum(ray_banyan_search_places_taken{app})", "taken"),
            ("sum(ray_banyan_search_places{app})", "there are"),
            ("sum(ray_banyan_search_queue_waiting_requests{app})", "requests in the queue"),
            id=21,
        ),
        panel(
            "Branches that wait",
            "short",
            "Requests in the queues of generators and reward models.",
            ("sum by (deployment) (ray_banyan_engine_waiting_requests{app})", "{{deployment}}"),
            id=22,
        ),
        panel(
            "Event loop delay",
            "s",
            "By controller. No request is let in while it is over controller.max_loop_delay_s.",
            ("max by (replica) (ray_banyan_event_loop_delay_seconds{app})", "{{replica}}"),
            id=23,
        ),
        panel(
            "Serve's control loop",
            "s",
            "Duration of the last pass of Serve's own controller: seconds here delay every start and scaling.",
            ("max(ray_serve_controller_control_loop_duration_s)", "last pass"),
            id=24,
        ),
        panel(
            "Calls made again",
            "reqps",
            "Calls to generators and reward models that were repeated because a replica failed.",
            ("sum by (call) (rate(ray_banyan_retries_total{app}[rate]))", "{{call}}"),
            id=25,
        ),
        panel(
            "Endings",
            "percentunit",
            "Share of all searches.",
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
            "Rounds of a search",
            "short",
            "Mean number of decisions that led to calls.",
            (
                (
                    "sum by (strategy) (rate(ray_banyan_search_rounds_total{app}[rate])) "
                    "/ sum by (strategy) (rate(ray_banyan_searches_total{app}[rate]))"
                ),
                "{{strategy}}",
            ),
        ),
        panel(
            "Steps",
            "ops",
            "Written by the generators, scored by the reward models, and the same as a sibling.",
            ("sum(rate(ray_banyan_steps_written_total{app}[rate]))", "written"),
            ("sum(rate(ray_banyan_steps_scored_total{app}[rate]))", "scored"),
            ("sum(rate(ray_banyan_steps_repeated_total{app}[rate]))", "repeated"),
        ),
    ),
)

REPLICAS = Dashboard(
    "banyan-replicas",
    "Banyan: replicas and scaling",
    "How many replicas there are and should be, what presses on them, and what Serve says of them.",
    (
        panel(
            "Replicas",
            "short",
            "Healthy ones, and the number that Serve wants.",
            ("sum by (deployment) (ray_serve_deployment_replica_healthy{app})", "{{deployment}}"),
            ("max by (deployment) (ray_serve_autoscaling_target_replicas{app})", "{{deployment}}, wanted"),
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
            "Starts of replicas",
            "short",
            "In the last quarter of an hour.",
            (
                (
                    "count by (deployment) (max_over_time(ray_serve_deployment_replica_starts_total{app}[15m]) "
                    "unless max_over_time(ray_serve_deployment_replica_starts_total{app}[15m] offset 15m))"
                ),
                "{{deployment}}",
            ),
        ),
        panel(
            "Batch",
            "percentunit",
            "Requests in a step of the engine over max_num_seqs, by generator.",
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
            "95%, as Serve measures it.",
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
            "Use of each node's processors and memory.",
            ("max by (instance) (ray_node_cpu_utilization)", "{{instance}} CPU"),
            ("100 * max by (instance) (ray_node_mem_used / ray_node_mem_total)", "{{instance}} memory"),
        ),
    ),
)

TENANTS = Dashboard(
    "banyan-tenants",
    "Banyan: tenants",
    "What each API key uses, by the first digits of its digest as `banyan keys` prints it, and what keys are refused.",
    (
        panel(
            "Generated tokens",
            "short",
            "A second, by key.",
            ("sum by (key) (rate(ray_banyan_generated_tokens_total{app}[rate]))", "{{key}}"),
        ),
        panel(
            "Share of the generated tokens",
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
            "Tokens of an hour",
            "short",
            "By key, to compare with its tokens_per_minute.",
            ("sum by (key) (increase(ray_banyan_generated_tokens_total{app}[1h]))", "{{key}}"),
        ),
        panel(
            "Refused for the limits of a key",
            "reqps",
            "Its places (owner), its tokens_per_minute, its bodies in transit.",
            (
                (
                    'sum(rate(ray_banyan_refused_requests_total{app, reason=~"owner|tokens_per_minute|bodies"}[rate])) '
                    "or vector(0)"
                ),
                "refused",
            ),
        ),
        panel(
            "Refused keys",
            "reqps",
            "Requests without a valid key, and with a key that may not do it.",
            ('sum by (status) (rate(ray_banyan_refused_requests_total{app, status=~"401|403"}[rate]))', "{{status}}"),
        ),
        panel(
            "Refused flex requests",
            "reqps",
            "Jobs and batches that made way for people.",
            (
                'sum(rate(ray_banyan_refused_requests_total{app, reason="flex"}[rate])) or vector(0)',
                "flex",
            ),
        ),
    ),
)
