"""Chat requests: what they may contain, how one becomes a search with its settings and prompt, and their routes."""
