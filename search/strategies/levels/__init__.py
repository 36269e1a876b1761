"""Strategies that decide level by level, and their common base."""
