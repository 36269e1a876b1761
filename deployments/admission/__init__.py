"""What a request passes before it costs anything: keys, bodies, quotas, the proxy's memory of refusals, a place."""
