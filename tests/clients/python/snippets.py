"""Runs the Python snippets of a document, one a section, and prints as JSON what each printed.

The document speaks of a node on its usual port; here it is another.
"""

import io
import json
import re
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path

url, document, *wanted = sys.argv[1:]
reports: dict[str, dict[str, str]] = {}
for heading, snippet in re.findall(
    r"^## (.+?)\n.*?^```python\n(.+?)^```", Path(document).read_text(), re.MULTILINE | re.DOTALL
):
    if heading not in wanted:
        continue
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            exec(snippet.replace("http://127.0.0.1:8080", url), {"__name__": heading})
        reports[heading] = {"saw": printed.getvalue()}
    except Exception:  # noqa: BLE001 - whatever a snippet raises is the report
        reports[heading] = {"failed": traceback.format_exc()}
print(json.dumps(reports))
