"""What the rest of `search` works with and that knows nothing of searches."""
