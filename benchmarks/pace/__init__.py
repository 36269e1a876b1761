"""How fast the working tree is relative to another commit: both applications are served beside each other and measured
in turns.

Each application is started by its own commit's ``banyan serve``, so that the two may differ in everything but that
command, ``serve_config.yaml``, ``scripts/`` and the HTTP API.
"""
