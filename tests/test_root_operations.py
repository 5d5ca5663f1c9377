"""What the product does to files, mounts and processes by their names has a line that says why that
is safe when root does it: tests/root_operations.toml."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.tidy.root_operations import of_python, of_text

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests/root_operations.toml"
FOLDERS = ("chunkstore", "proxy", "mount", "lodefs", "deploy")
WHY_MIN = 20  # characters of a sentence
HOW = f"""
{LIST.relative_to(ROOT)} says of each such line why it is safe when root does it. For a new one, ask
who but root can change a part of the path. Nobody: put the line below the [[places]] whose "why" is
true of it, or make a [[places]] with a sentence of its own. A user: do it through descriptors
(chunkstore/system/safe_open.py, mount/kernel/mountpoints.py), or refuse. Do not only silence this.
"""


def operations() -> Iterator[str]:
    """Those of all modules and scripts, in order. lodefs/ also shows other packages, as links."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.resolve() != path or not path.is_file() or path.parent.name == "generated":
                continue
            name = str(path.relative_to(ROOT))
            if path.suffix == ".py":
                yield from of_python(path, name)
            elif folder == "deploy" and _is_program(path):
                yield from of_text(path, name)


def _is_program(path: Path) -> bool:
    return path.suffix in (".c", ".lua") or path.read_bytes()[:2] == b"#!"


def listed() -> dict[str, str]:
    """Each line of the list, with its reason."""
    places = tomllib.loads(LIST.read_text())["places"]
    lines = [(line, one["why"]) for one in places for line in one["operations"]]
    twice = [line for line, count in Counter(line for line, _ in lines).items() if count > 1]
    assert not twice, f"listed more than once: {twice}"
    return dict(lines)


def test_each_operation_has_a_reason() -> None:
    """What the source does and what the list has are the same, and no reason is missing."""
    found, known = list(operations()), listed()
    missing = [line for line in found if line not in known]
    gone = sorted(known.keys() - set(found))
    assert not missing and not gone, "\n".join(
        [
            *(f"not listed: {line}" for line in missing),
            *(f"not there: {line}" for line in gone),
            HOW,
        ]
    )
    assert not [line for line, why in known.items() if len(why) < WHY_MIN]


SAMPLE = '''
"""Of /proc/self nothing is said here."""
from pathlib import Path
_FLAGS = os.O_WRONLY | os.O_CREAT
_TABLE = Path("/proc/self/mountinfo")
class Place:
    def make(self):
        """Like /proc."""
        self.path.mkdir(parents=True)
        os.chown(self.path, 1, 1)
        os.chown(self.path, 2, 2)
def opened(path, mode):
    os.open(path, os.O_RDONLY)
    os.open(path, _FLAGS)
    open(path)
    open(path, "ab")
    path.open("w")
    path.open(flags)
    open(path, mode)
    name.replace("a", "b")
    path.replace(other)
def looked():
    _TABLE.read_bytes()
    open(f"/proc/{pid}/status")
    libc.call("umount2", path, 2)
    mount_syscalls.detach(path)
'''
FOUND = [
    "m.py <module>: /proc",
    "m.py Place.make: .mkdir",
    "m.py Place.make: os.chown x2",
    "m.py opened: os.open",
    "m.py opened: open x3",
    "m.py opened: .replace",
    "m.py looked: /proc x2",
    "m.py looked: umount2(2)",
    "m.py looked: detach",
]


def test_operations_are_found(tmp_path: Path) -> None:
    """Writing, changing and mounting are told from reading, in functions and methods."""
    (tmp_path / "m.py").write_text(SAMPLE)
    assert list(of_python(tmp_path / "m.py", "m.py")) == FOUND


def test_operations_of_scripts_are_found(tmp_path: Path) -> None:
    """Commands of a shell, and calls of C, are told from words in comments and texts."""
    (tmp_path / "s.sh").write_text(
        '#!/bin/sh\n# rm -r is not meant\nput() {\n  mkdir -p "$1" && cp a b\n  echo x >"$1"\n}\n'
        'say "install it" 2>/dev/null >&2\nrm -r x\nread x </proc/1/stat\n'
    )
    (tmp_path / "p.c").write_text("static int go(void)\n{\n\tmount(a, b);\n}\n/* chown(x) */\n")
    assert list(of_text(tmp_path / "s.sh", "s")) == [
        "s put: mkdir", "s put: cp", "s put: >", "s <module>: rm", "s <module>: /proc",
    ]  # fmt: skip
    assert list(of_text(tmp_path / "p.c", "p")) == ["p go: mount"]
