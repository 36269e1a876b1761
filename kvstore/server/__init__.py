"""A node's LMCache server: its process, who keeps it, what it leaves behind."""
