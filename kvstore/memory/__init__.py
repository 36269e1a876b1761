"""KV memory: the capacity of an engine, and the blocks that its requests reserve."""
