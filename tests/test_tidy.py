"""The limits that keep the code readable, and who may import what. What is advice stands in
tests/support/tidy/advice.py."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.proxy.cache.cache_file import CacheFile
from tests.support.tidy import root_operations
from tests.support.tidy.sources import (
    PACKAGES,
    ROOT,
    functions,
    imports,
    nodes,
    relative,
    sources,
    tree,
)

CODE = (*PACKAGES, "tests", "loadtests", "deploy", "grafana")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
DOCUMENT_COLUMNS_MAX = 120
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

# A foreign library is imported in one file of a package, which translates its exceptions.
ONE_IMPORTER = {
    "boto3",
    "botocore",
    "dns",
    "fastcdc",
    "rocksdict",
    "sqlite3",
    "zstandard",
}


PRODUCT = list(sources(*PACKAGES))
TESTS = list(sources("tests"))
ALL = [*PRODUCT, *TESTS, *sources("loadtests")]


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_collection() -> Iterator[None]:
    """The collector would visit millions of nodes of syntax trees again and again."""
    gc.disable()
    yield
    gc.enable()


def test_file_length() -> None:
    """No file is longer than the limit."""
    lines = {relative(path): len(path.read_text().splitlines()) for path in ALL}
    assert not {path: count for path, count in lines.items() if count > FILE_LINES_MAX}


def test_function_length() -> None:
    """No function is longer than the limit."""
    lines = {
        f"{relative(path)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in ALL
        for node in functions(path)
        if node.end_lineno is not None
    }
    assert not {name: count for name, count in lines.items() if count > FUNCTION_LINES_MAX}


def test_modules_say_what_they_own() -> None:
    """Every module has a docstring, and none a name that fits anything."""
    assert not [relative(path) for path in PRODUCT if not ast.get_docstring(tree(path))]
    assert not [relative(path) for path in PRODUCT if path.stem in VAGUE_NAMES]


def test_the_product_has_no_test_support() -> None:
    """No module or folder of the product is for tests."""
    assert not [path for path in PRODUCT if "testing" in relative(path)]


def test_one_place_starts_python() -> None:
    """Other Python processes are started by chunkstore/python_process.py alone: the program of a
    package sees its packages only as that knows."""
    users = {
        relative(path)
        for path in PRODUCT
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"
    }
    assert users == {"chunkstore/python_process.py"}


def test_tests_state_their_claim() -> None:
    """Every test has a docstring."""
    silent = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in TESTS
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not silent


def test_tests_never_sleep() -> None:
    """No test sleeps. Test support (tests/support) may poll until a condition is true."""
    sleeps = [
        f"{relative(path)}:{node.lineno}"
        for path in TESTS
        if not relative(path).startswith("tests/support/")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
    ]
    assert not sleeps


def test_structures_are_decoded_in_one_place() -> None:
    """msgspec decodes only what chunkstore/format/decoding.py has prepared: else threads crash."""
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in PRODUCT
        if relative(path) != "chunkstore/format/decoding.py"
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func).startswith("msgspec.")
        and node.func.attr in ("decode", "Decoder", "convert")
    ]
    assert not found


ROWS_OF_CACHE = re.compile(
    r"layout\.(?:(?:file|flat|run|checked|held|pin)_key|encode_(?:checked|(?:chunk|file|run|pin)_row))"
)


def test_the_cache_has_one_writer() -> None:
    """Outside of proxy/cache nobody sets a field of a cache's file, uses the cache's tables or its
    lock, writes to its index, or makes rows of its own tables: Cache has methods for all that."""
    inside = {"files", "flats", "lock", "evicted", "retired", "reserved_bytes", "add_rows"}
    found = []
    for path in sources("proxy"):
        if relative(path).startswith("proxy/cache/"):
            continue
        users = any(name.startswith("lodefs.proxy.cache") for name in imports(path))
        for node in nodes(path):
            if not isinstance(node, ast.Attribute):
                continue
            owner = ast.unparse(node.value)
            is_set = isinstance(node.ctx, ast.Store) and owner not in ("self", "job")
            if (
                (users and is_set and node.attr in CacheFile.__slots__)
                or (owner.endswith("cache") and node.attr in inside)
                or owner.endswith("cache.kv")
                or ROWS_OF_CACHE.fullmatch(f"{owner}.{node.attr}")
            ):
                found.append(f"{relative(path)}:{node.lineno} {ast.unparse(node)}")
    assert not found


def test_what_root_does_has_a_reason() -> None:
    """What changes, mounts or asks /proc by a name has a line that says why root may do it."""
    complaint = root_operations.complaint()
    assert not complaint, complaint


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("library", sorted(ONE_IMPORTER))
def test_foreign_library_has_one_importer(package: str, library: str) -> None:
    """Each foreign library is imported in one file of a package at most."""
    importers = [
        relative(path)
        for path in sources(package)
        if library in {name.partition(".")[0] for name in imports(path)}
    ]
    assert len(importers) <= 1


def test_import_contracts() -> None:
    """The arrows between the packages hold."""
    script = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / folder / "README.md" for folder in ("deploy", "loadtests")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_documents(document: Path) -> None:
    """Lines fit into a terminal, but for rows of tables; every relative link leads to a file and a
    heading of it, and every module that a document of today names exists."""
    text = document.read_text()
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert not [line for line in prose if len(line) > DOCUMENT_COLUMNS_MAX]
    links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text)
    broken = [
        f"{link}#{anchor}"
        for link, anchor in links
        if not (target := document.parent / link if link else document).exists()
        or (anchor and anchor not in anchors(target))
    ]
    assert not broken
    if document.name != "CHANGELOG.md":  # which tells of the past
        named = rf"(?<![\w/.-])((?:{'|'.join(CODE)})/[\w/]+\.py)\b"
        modules = re.findall(named, text)
        assert not [module for module in modules if not (ROOT / module).exists()]
