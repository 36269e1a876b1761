"""KV memory: how much there is, and who has it."""
