"""Where the second major version of the SDK is installed; `make setup` puts it there."""

import sys
from pathlib import Path

OPENAI_2 = Path(sys.prefix) / "openai-2"
