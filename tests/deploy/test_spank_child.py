"""The program that Slurm's plug-in runs as root: whatever it does, a step waits a limited time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.chunkstore.child_process import TIMEOUT_S
from tests.support.mount.mounts import until

HERE = Path(__file__).parent / "spank"
PLUGIN = Path(__file__).parents[2] / "deploy/slurm"
NOTHING_SAID = "lodefs: error: the datasets cannot be shown\n"


def _built(folder: Path, *, limit_ms: int) -> Path:
    program = folder / f"enter-{limit_ms}"
    flags = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=undefined",
        f"-DENTER_TIMEOUT_MS={limit_ms}",
    ]
    command: list[str | Path] = [
        "gcc",
        *flags,
        f"-I{HERE}",
        f"-I{PLUGIN}",
        "-o",
        program,
        HERE / "enter.c",
    ]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    return program


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in's wait, with a limit that no test reaches."""
    return _built(tmp_path_factory.mktemp("spank"), limit_ms=600_000)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a limit that is soon over."""
    return _built(tmp_path_factory.mktemp("spank"), limit_ms=300)


def _said(wait: Path, script: str, folder: Path) -> str:
    """What tasks are told of a program that is this shell script."""
    program = folder / "lodefs"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with (folder / "said").open("w+b") as out:  # no pipe that a grandchild could keep open
        subprocess.run([wait, program], stdout=out, check=True, timeout=TIMEOUT_S)
        out.seek(0)
        return out.read().decode()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo only a warning >&2", ""),
        ("echo 'lodefs: error: no' >&2; exit 1", "lodefs: error: no\n"),
        ("exit 1", NOTHING_SAID),
        ("exec 2>&-; exit 1", NOTHING_SAID),
        ("kill -9 $$", NOTHING_SAID),
        ("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1", "x" * 4095),
    ],
)
def test_what_it_says(patient: Path, tmp_path: Path, script: str, said: str) -> None:
    """Of a program that fails, up to 4 KB; a warning is for nobody."""
    assert _said(patient, script, tmp_path) == said


@pytest.mark.parametrize("rest", ["sleep 1000", "yes >&2"])
def test_what_keeps_its_standard_error_costs_nothing(
    patient: Path, tmp_path: Path, rest: str
) -> None:
    """The program's own end counts, and what it has said by then."""
    pid_file = tmp_path / "pid"
    try:
        script = f"echo 'lodefs: error: no' >&2; {rest} & echo $! >{pid_file}; exit 1"
        assert _said(patient, script, tmp_path).startswith("lodefs: error: no\n")
    finally:
        os.kill(int(pid_file.read_text()), 9)


@pytest.mark.parametrize("first", ["", "exec 2>&-;", "echo slow >&2;", "trap '' TERM;"])
def test_one_that_does_not_end_is_killed(hasty: Path, tmp_path: Path, first: str) -> None:
    """With what it has started, and whether or not it closes its standard error."""
    pid_file = tmp_path / "pid"
    script = f"{first} sleep 1000 & echo $! >{pid_file}; wait"
    assert _said(hasty, script, tmp_path) == ("slow\n" if "slow" in first else NOTHING_SAID)
    stat = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
