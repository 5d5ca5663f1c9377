"""``python -m loadtests.slurm TASK``: see ``--help``."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from loadtests.slurm.cluster import cluster, missing
from tests.support.chunkstore.child_process import ChildError, private_directory, run

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 600.0
TASKS = {
    "test": "the tests on a real Slurm; further words go to pytest",
    "packaged": "the same with lodefs from its Debian package, which is built first",
    "shell": "three nodes with lodefs on them, and a shell of the submit host",
}


def run_tests(words: list[str]) -> int:
    """pytest on what needs a Slurm. Its exit code."""
    names_tests = any(Path(ROOT, word.partition("::")[0]).exists() for word in words if word)
    argv = [sys.executable, "-m", "pytest", "-q", *words, *([] if names_tests else ["tests/slurm"])]
    environ = {**os.environ, "LODEFS_TEST_SLURM": "1"}
    return subprocess.run(argv, cwd=ROOT, env=environ, check=False).returncode


def run_packaged(words: list[str]) -> int:
    """The same on an installed package."""
    with private_directory("ls-deb-") as folder:
        built = run([ROOT / "deploy/debian/build.sh", "--out", folder], timeout_s=BUILD_TIMEOUT_S)
        os.environ["LODEFS_SLURM_PACKAGE"] = built.splitlines()[-1]
        return run_tests(words)


def shell() -> int:
    """A cluster to look at, until the shell ends."""
    with cluster() as made:
        print(f"lodefs --store {made.folder}/store push DIR REPO; then srun --lodefs=REPO:DIR ...")
        environ = {**os.environ, **made.environment}
        return subprocess.run([*made.argv_inside(), "bash"], env=environ, check=False).returncode


def main(argv: list[str]) -> int:
    """The exit code: 0 fine, 1 failed, 2 cannot run here."""
    parser = argparse.ArgumentParser(prog="./run slurm", description="A real Slurm of three nodes")
    parser.add_argument(
        "task", choices=TASKS, help="; ".join(f"{k}: {v}" for k, v in TASKS.items())
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for pytest")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if lacking := missing():
        print(f"./run slurm: missing: {lacking}", file=sys.stderr)
        return 2
    try:
        if given.task == "packaged":
            return run_packaged(given.words)
        return shell() if given.task == "shell" else run_tests(given.words)
    except ChildError as error:
        print(f"./run slurm: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
