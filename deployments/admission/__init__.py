"""Admission of requests: API keys, request bodies, token quotas, places, and the proxy's early refusals."""
