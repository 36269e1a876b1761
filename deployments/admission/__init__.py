"""Admission of requests: API keys, request bodies, token quotas, slots, and the proxy's early refusals."""
