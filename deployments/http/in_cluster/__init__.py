"""The endpoint for callers inside the cluster, which reach a controller by its Serve handle."""
