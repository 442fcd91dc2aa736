"""The benchmarks are a package beside `src`, which nothing installs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
