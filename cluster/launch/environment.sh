# What every process of Banyan's has in its environment, on every way in which it starts or joins Ray: `make`, `banyan serve`,
# the tests and the benchmarks read this file, and so does who types `ray` and `serve` by hand (`. scripts/environment`).
# Read by make, by sh and by cluster/launch/environment.py alike, so: only lines of this form, no quotes, and no reference but
# ${HOME}. Another value: set it after sourcing, or with `make run NAME=value`; Python leaves alone what is set already.

# One event loop per replica and batched handle calls: a call costs 0.57 instead of 1.5 ms. Must be set before Ray starts.
export RAY_SERVE_THROUGHPUT_OPTIMIZED=1

# What the line above would turn on: a second open port for each controller, and half a minute more for every shutdown.
export RAY_SERVE_ENABLE_DIRECT_INGRESS=0

# Serve's proxy takes orders from headers of a request, such as not to notice that its client has gone: not from clients'.
export RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deployments.admission.proxy:middlewares

# Ray executes what reaches its ports, and replicas unpickle what reaches theirs: only for who has the token. `make setup`
# and `banyan serve` make the file where there is none. Without the first line `serve` and `ray job` do not send the token.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH=${HOME}/.banyan/ray_token

# Ray on this machine only: it then listens on the loopback interface. Ray has no better name for it. 1 on every node of a
# cluster of several machines, whose ports are then open to their network (docs/operating.md).
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0

# A replica that fails its health checks is hung: it is killed, not drained first.
export RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS=1

# glibc's allocator keeps an arena for each of many threads, each with holes of its own, and learns from the first large
# piece to keep such ones too. Processes under searches then grow by 1 to 3 MB a minute with no object more than before.
# Engines, which these settings make slow, have an allocator of their own: deployments/engines/allocator.py.
export MALLOC_ARENA_MAX=2
export MALLOC_MMAP_THRESHOLD_=131072

# Nothing is reported to anybody.
export RAY_USAGE_STATS_ENABLED=0
export VLLM_NO_USAGE_STATS=1
export LMCACHE_TRACK_USAGE=false
export DO_NOT_TRACK=1
