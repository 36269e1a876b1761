"""Searches as clients see them: with their whole tree, as rewards of a given path, and as stored searches."""
