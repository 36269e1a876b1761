"""Strategies whose later solutions are written by a model that reads earlier ones."""
