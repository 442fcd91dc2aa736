"""Settings of all property tests."""

import os

from hypothesis import settings

# A busy machine is no failed property; and what CI finds, anybody finds again.
settings.register_profile("unhurried", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable" if os.environ.get("CI") else "unhurried")
