"""The search strategies, one module each. ``search.settings.STRATEGIES`` lists them by name."""
