"""The paths and tests that the documents name exist: a page that names what was moved misleads a newcomer."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
NAMED = re.compile(r"(?<![\w/.-])((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)?(?:::(test_\w+))?")
"""A path, a test of it, or `::test` alone, which is of the path named last."""


def file_of(path: str) -> Path | None:
    """The file that a page means by this path, from the root, the sources or the tests."""
    starts = (ROOT, ROOT / "src/ganglion", ROOT / "tests", ROOT / "src/ganglion/engines")
    return next((start / path for start in starts if (start / path).is_file()), None)


@cache
def functions_of(file: Path) -> frozenset[str]:
    found = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_test_that_a_page_names_exists(page: Path) -> None:
    missing = []
    last: Path | None = None
    for found in NAMED.finditer(page.read_text()):
        path, test = found.groups()
        last = file_of(path) if path else last
        if (path or test) and (last is None or (test and test not in functions_of(last))):
            missing.append(found.group(0))
    assert missing == []
