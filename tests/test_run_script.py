"""``./run``: what it says of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.chunkstore.directories import open_directory

RUN = Path(__file__).parents[1] / "run"
ONE_FUNCTION = """
eval "$(sed -n "/^$1()/,/^}/p" "$2")"
id() { echo "$UID_SHOWN"; }
shift 2
say_who_cannot_run "$@"
"""


def said(*programs: Path, uid: int = 0) -> str:
    """What it says of programs that somebody installs."""
    words: list[str | Path] = [
        "bash",
        "-c",
        ONE_FUNCTION,
        "-",
        "say_who_cannot_run",
        RUN,
        *programs,
    ]
    done = subprocess.run(
        words,
        env={"UID_SHOWN": str(uid), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


def test_root_is_told_that_others_cannot_run_what_it_installs() -> None:
    """A program, or what its link leads to, below a directory that others may not enter is named
    with the directory and the way out; to others, and where all may enter, nothing is said."""
    with open_directory() as public:
        program, python, closed = public / "lodefs", public / "python", public / "closed"
        program.touch()
        (closed / "bin").mkdir(parents=True)
        (closed / "bin" / "python3").touch()
        python.symlink_to("closed/bin/python3")
        assert said(program, python) == ""
        closed.chmod(0o700)
        assert said(program) == ""
        told = said(program, python)
        assert f"other users may not enter {closed}, where {python} lies" in told
        assert "docs/install.md" in told
        assert said(program, python, uid=1000) == ""


@pytest.mark.parametrize(
    ("told", "index"),
    [
        ("", "https://pypi.org/simple"),
        ("global.index-url='https://ours.example/simple'", "https://ours.example/simple"),
        ("global.extra-index-url='https://more.example'", "https://pypi.org/simple"),
        ("global.index-url='https://a.example'\n:env:.index-url='https://b.example'",
         "https://b.example"),
    ],
)  # fmt: skip
def test_uv_asks_the_index_that_pip_is_told(told: str, index: str, tmp_path: Path) -> None:
    """Packages never come from a public index where pip is told to use another one."""
    done = uv_install(told, f'[ "$UV_DEFAULT_INDEX $*" = "{index} {UV_WORDS}" ]', tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_uv_cannot_install_is_left_to_pip(tmp_path: Path) -> None:
    """The failure is said, and is not the end."""
    done = uv_install("", "exit 2", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "./run: uv could not install the packages; pip tries it\n"


UV_WORDS = "pip install --python .venv/bin/python -e .[dev]"
UV_INSTALL = """
eval "$(sed -n "/^uv_install()/,/^}/p" "$1")"
pip() { [ "$1" != config ] || echo "$TOLD"; }
uv_install -e '.[dev]'
"""


def uv_install(told: str, uv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The end of the function: ``told`` is the configuration of pip, ``uv`` a script of sh."""
    program = folder / ".venv/bin/uv"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{uv}\n")
    program.chmod(0o755)
    return subprocess.run(
        ["bash", "-c", UV_INSTALL, "-", RUN],
        cwd=folder,
        env={"TOLD": told, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
