"""A controller's event loop: its delay, and garbage collection that does not stop it."""
