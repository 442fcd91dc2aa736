"""Settings of the property tests of this room."""

from hypothesis import settings

# A busy machine is no failed property.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
