"""Private names of modules that nobody reads: what is left over when code moves elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def unread(source: str) -> list[str]:
    """Names with an underscore that a module gives at its top, and never mentions again."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            targets = []
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # What is decorated, a fixture for example, may be read by the decorator.
            names = [] if node.decorator_list else [node.name]
        found += [
            name
            for name in names
            if re.fullmatch(r"_[A-Za-z]\w*", name) and len(re.findall(rf"\b{name}\b", source)) == 1
        ]
    return found


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_no_private_name_is_left_over(folder: str) -> None:
    modules = {
        str(path.relative_to(ROOT)): unread(path.read_text())
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert {path: names for path, names in modules.items() if names} == {}


def test_names_left_over_are_found() -> None:
    assert unread("_A = 1\n_B: int = 2\ndef _c(): return _B\nclass _D: ...\nE = 5\n") == [
        "_A",
        "_c",
        "_D",
    ]
