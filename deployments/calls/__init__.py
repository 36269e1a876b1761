"""Calls over Ray Serve handles: as the ports of a search, with retries, deadlines and a breaker."""
