"""Which replica gets a call, and when a pool of replicas grows or shrinks."""
