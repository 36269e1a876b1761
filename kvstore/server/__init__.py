"""A node's LMCache server: its process, its keeper, its metrics, and the shared memory to clean up."""
