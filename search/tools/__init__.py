"""Helpers for the rest of `search` that are independent of searches."""
