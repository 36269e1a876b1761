"""Metrics of Ray, Serve and vLLM that dashboards and alerts use, by the names under which Ray's agents publish them,
with their labels. Banyan's own are in `deployments.telemetry.catalog`."""

COMMON = frozenset({"instance", "job", "SessionName", "WorkerId", "NodeAddress", "Component", "Version"})
"""Labels of every series: of Prometheus' target, and of Ray's agent."""
_APPLICATION = frozenset({"application"})
_DEPLOYMENT = frozenset({"application", "deployment"})
_REPLICA = frozenset({"application", "deployment", "replica"})
_VLLM = frozenset({"model_name", "engine", "ReplicaId"})

FOREIGN: dict[str, frozenset[str]] = {
    "up": frozenset(),
    "ray_node_cpu_utilization": frozenset(),
    "ray_node_mem_total": frozenset(),
    "ray_node_mem_used": frozenset(),
    "ray_serve_application_status": _APPLICATION,
    "ray_serve_autoscaling_target_replicas": _DEPLOYMENT,
    "ray_serve_controller_control_loop_duration_s": frozenset(),
    "ray_serve_deployment_processing_latency_ms_bucket": _REPLICA | {"route", "le"},
    "ray_serve_deployment_queued_queries": _DEPLOYMENT | {"handle", "actor_id"},
    "ray_serve_deployment_replica_healthy": _REPLICA,
    "ray_serve_deployment_replica_starts_total": _REPLICA,
    "ray_serve_deployment_status": _DEPLOYMENT,
    "ray_serve_num_ongoing_http_requests": frozenset({"node_id", "node_ip_address"}),
    "ray_serve_num_ongoing_requests_at_replicas": _DEPLOYMENT | {"handle", "actor_id"},
    # With `telemetry.engine_metrics`:
    "ray_vllm_inter_token_latency_seconds_bucket": _VLLM | {"le"},
    "ray_vllm_kv_cache_usage_perc": _VLLM,
}
