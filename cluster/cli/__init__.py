"""The ``banyan`` command: one module per command, and what they show in a terminal."""
