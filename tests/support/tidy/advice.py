"""What a reviewer looks at: sizes that often are a sign of something, and no failure.

``./run check`` prints it. As a test, such a limit makes code that is there for the limit alone:
folders of one module, bundles of arguments, second words for one thing.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.support.tidy.sources import PACKAGES, classes, relative, sources, tree

FOLDER_MODULES = 14  # besides lodefs/commands, which are a module each
ARGUMENTS = 7
FRAGMENT_LINES = 60


def advice() -> Iterator[str]:
    """One line for each folder, constructor, class name and module that is worth a look."""
    yield from _large_folders()
    yield from _long_constructors()
    yield from _shared_class_names()
    yield from _fragments()


def _large_folders() -> Iterator[str]:
    paths = (path for path in sources(*PACKAGES) if path.name != "__init__.py")
    for folder, count in Counter(path.parent for path in paths).items():
        if count > FOLDER_MODULES and relative(folder) != "lodefs/commands":
            yield f"{relative(folder)}: {count} modules"


def _long_constructors() -> Iterator[str]:
    for path in sources(*PACKAGES):
        for node in classes(path):
            for own in node.body:
                if isinstance(own, ast.FunctionDef) and own.name == "__init__":
                    count = len(own.args.args) + len(own.args.kwonlyargs) - 1
                    if count > ARGUMENTS:
                        yield f"{relative(path)}:{own.lineno} {node.name}: {count} arguments"


def _shared_class_names() -> Iterator[str]:
    for package in PACKAGES:
        places = defaultdict[str, list[str]](list)
        for path in sources(package):
            for node in classes(path):
                places[node.name].append(relative(path))
        for name, paths in places.items():
            if len(paths) > 1:
                yield f"class {name}: {', '.join(paths)}"


def _fragments() -> Iterator[str]:
    """Short modules that one other module imports: is each a noun of its own?"""
    importers = defaultdict[str, set[str]](set)
    for path in sources(*PACKAGES):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                    importers[name].add(relative(path))
    for path in sources(*PACKAGES):
        lines = len(path.read_text().splitlines())
        module = relative(path).removesuffix(".py").replace("/", ".")
        name = module if module.startswith("lodefs.") else f"lodefs.{module}"
        if path.name != "__init__.py" and lines < FRAGMENT_LINES and len(importers[name]) == 1:
            yield f"{relative(path)}: {lines} lines, imported by {importers[name].pop()} alone"


def main() -> None:
    lines = list(advice())
    print(*lines, sep="\n")
    print(f"advice: {len(lines)} places to look at; nothing of it is a failure")


if __name__ == "__main__":
    main()
