"""What the list of what root does is made of."""

from __future__ import annotations

from pathlib import Path

from tests.support.tidy.root_operations import of_python, of_text

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
