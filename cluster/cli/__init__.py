"""The ``banyan`` command: one module per command, and their terminal output."""
