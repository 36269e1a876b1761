"""Strategies that write whole solutions."""
