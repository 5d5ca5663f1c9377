"""The Python files of the project, and what is in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("chunkstore", "proxy", "mount", "lodefs")
GENERATED = "generated"  # a folder of what a tool has made


def sources(*folders: str) -> Iterator[Path]:
    """The Python files of folders. lodefs/ also shows the other packages, as links: they count as
    what they are."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.resolve() == path and path.parent.name != GENERATED:
                yield path


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(tree(path)))


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports from, by their full names."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def classes(path: Path) -> Iterator[ast.ClassDef]:
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            yield node
