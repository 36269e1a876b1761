"""KV memory: its geometry, the node's cache server and the engines' connector to it."""
