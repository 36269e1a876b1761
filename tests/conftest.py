"""Settings that all tests share."""

from hypothesis import settings

# The duration of an example depends on the machine, not on the code.
settings.register_profile("banyan", deadline=None)
settings.load_profile("banyan")
