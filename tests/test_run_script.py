"""``./run``: what it says of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
