"""many-machines.md of docs/: its commands, the array of Slurm and the Job of Kubernetes make the
commit of a plain push."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, block
from tests.support.chunkstore.child_process import private_directory, run
from tests.support.chunkstore.directories import write_files

pytestmark = pytest.mark.slow

STEPS = block("many-machines.md#step-by-step-1")
EXECUTOR = block("many-machines.md#on-one-machine-or-with-an-executor-1")
ARRAY = block("many-machines.md#as-an-array-of-slurm-1")
GARBAGE = block("many-machines.md#garbage-1")
COPY = block("many-machines.md#copies-between-stores-1")
CHECKS = [block(f"many-machines.md#checks-of-a-store-{n}") for n in (1, 2)]


class User:
    """A user in a directory with a source and a store."""

    def __init__(self, folder: Path) -> None:
        write_files(folder / "crawl", {f"{n % 3}/{n}": bytes([n]) * 999 * n for n in range(9)})
        program = folder / "lodefs"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lodefs.main "$@"\n')
        program.chmod(0o755)
        self._folder = folder
        self._environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "LODEFS_STORE": str(folder / "store"),
            "LODEFS_CONFIG": os.devnull,
        }
        self.sh("lodefs init $LODEFS_STORE")

    def sh(self, script: str, **more: str) -> str:
        """What a script writes."""
        environment = self._environment | more
        return run(["bash", "-ec", f"cd {self._folder}\n{script}"], env=environment, timeout_s=120)

    def assert_pushed(self) -> None:
        """The branch has what a plain push makes of the source."""
        assert "nothing changed: data/crawl@main" in self.sh("lodefs push ./crawl data/crawl")


@pytest.fixture
def user() -> Iterator[User]:
    with private_directory() as folder:
        yield User(folder)


def test_the_steps_and_an_executor(user: User) -> None:
    """The commands run as they stand; the second way finds nothing to commit, checks find
    nothing wrong, and a copy sends all."""
    out = user.sh(STEPS)
    assert "crawl-7  1 part, 9 files" in out and "done       1 of 1 part" in out
    user.assert_pushed()
    assert "nothing changed: data/crawl@main" in user.sh(EXECUTOR)
    assert user.sh(CHECKS[0]).count("all is well") == 2
    assert user.sh(CHECKS[1]).count("all is well") == 4
    assert "in use      2 packs, 1 commit" in user.sh(GARBAGE)
    user.sh("lodefs init ./mirror")
    assert "sent: 1 commit, 2 packs" in user.sh(COPY)


def test_an_array_and_a_job(user: User) -> None:
    """The batch script does a task of the array, and the command of the Job one of its indexes;
    both do it again after a part was done."""
    user.sh("lodefs plan create crawl-7 ./crawl data/crawl")
    for task in ("32", "1"):
        user.sh(ARRAY, SLURM_ARRAY_TASK_ID=task, SLURM_ARRAY_TASK_COUNT="32")
    page = (ROOT / "docs" / "many-machines.md").read_text()
    job = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert job["spec"]["completionMode"] == "Indexed"
    assert "command" not in container  # the image has no shell
    for index in ("0", str(job["spec"]["completions"] - 1)):
        # as a kubelet replaces variables
        given = {"$(JOB_COMPLETION_INDEX)": index, "$(SOURCE)": "./crawl"}
        words = shlex.join(container["args"])
        for name, value in given.items():
            words = words.replace(name, value)
        user.sh(f"lodefs {words}")
    user.sh("lodefs plan finish crawl-7")
    user.assert_pushed()
