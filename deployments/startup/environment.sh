# Environment variables of every Banyan process that starts or joins Ray. `make`, `banyan serve`, the tests and the
# benchmarks read this file. Run `. scripts/environment` before `ray` or `serve` by hand.
# make, sh and deployments/startup/environment.py all parse it: only lines of this form, no quotes, no reference but ${HOME}.
# For another value, set it after sourcing, or with `make run NAME=value`. Python keeps variables that are already set,
# but for those that are empty here: an empty value turns off what the caller's environment turns on.

# Python keeps the bytecode of every module that it imports. Many machines and images turn this off: each of the dozen
# processes of an application then compiles the same thousand modules again, which takes as long as all the rest.
export PYTHONDONTWRITEBYTECODE=

# One event loop per replica, and batched handle calls: a call costs 0.57 instead of 1.5 ms. Must be set before Ray
# starts.
export RAY_SERVE_THROUGHPUT_OPTIMIZED=1

# The line above would turn this on: a second open port for each controller, and shutdowns half a minute longer.
export RAY_SERVE_ENABLE_DIRECT_INGRESS=0

# Serve's proxy obeys control headers of a request, such as to ignore that its client has disconnected, and limits
# neither headers nor bodies. These middlewares drop such headers and set limits.
export RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deployments.admission.proxy:middlewares

# Ray runs code that is sent to its ports, and replicas unpickle data sent to theirs: both require the token. `make
# setup` and `banyan serve` create the file if there is none. Without the first line `serve` and `ray job` do not send
# the token.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=${HOME}/.banyan/ray_token

# 0: Ray listens on the loopback interface only. Ray has no better name for this, and it resolves `--node-ip-address
# 127.0.0.1` to the outer address. Set 1 on every node of a cluster of several machines, whose ports are then open to
# their network (docs/operating.md).
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0

# Ray starts its workers at nice 15: on a machine that does anything else, engines would get only what that leaves.
export RAY_worker_niceness=0

# A replica that fails its health checks hangs: it is killed without draining.
export RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS=1

# glibc's allocator keeps a fragmented arena for each of many threads, and raises its mmap threshold after the first
# large allocation. Processes under searches then grow by 1 to 3 MB a minute without holding more objects. Engines,
# which these settings slow down, have an allocator of their own: deployments/engines/allocator.py.
export MALLOC_ARENA_MAX=2
export MALLOC_MMAP_THRESHOLD_=131072

# Where Grafana has cluster/dashboards, the Serve page of Ray's dashboard shows Banyan's searches (docs/operating.md).
export RAY_GRAFANA_SERVE_DASHBOARD_UID=banyan-searches

# No usage statistics are sent.
export RAY_USAGE_STATS_ENABLED=0
export VLLM_NO_USAGE_STATS=1
export LMCACHE_TRACK_USAGE=false
export DO_NOT_TRACK=1
