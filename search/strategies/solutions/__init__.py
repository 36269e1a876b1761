"""Searches that write whole solutions."""
