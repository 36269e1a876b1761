"""Searches that decide level by level, and what they share."""
