"""What all tests have in common."""

from hypothesis import settings

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("banyan", deadline=None)
settings.load_profile("banyan")
