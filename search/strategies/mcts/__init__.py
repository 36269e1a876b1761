"""Strategies that descend from the root to the best leaf and back values up, and their common parts."""
