"""Searches that go down from the root to the best leaf and back their values up, and what they share."""
