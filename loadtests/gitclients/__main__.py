"""``./run git-clients [api] [table] [dvc]``: what users of Git have, against a real proxy over TLS.

api: git-lfs-test-server-api, built by Go once. table: Git and git-lfs of the system: everyday
commands, many and large objects, kills of either side. dvc: a repository that DVC itself made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtests.gitclients import dvc, table
from loadtests.services import go_programs
from tests.support.proxy.lfs_site import lfs_site

API = "github.com/git-lfs/git-lfs/v3/t/git-lfs-test-server-api"
API_VERSION, API_TESTS = "v3.7.1", 7
TIMEOUT_S = 900.0


def api(folder: Path) -> bool:
    """Whether all tests of the API pass."""
    program = go_programs.built(API, API_VERSION)
    with lfs_site(folder) as site:
        done = subprocess.run(
            [program, "--url", site.url(site.writer)],
            cwd=folder,
            env={**os.environ, "GIT_SSL_CAINFO": str(site.certificate), "HOME": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    passed = [line for line in done.stdout.splitlines() if line.rstrip().endswith(" OK")]
    print(*passed, sep="\n")
    if done.returncode or len(passed) != API_TESTS:
        print(done.stdout, done.stderr)
        return False
    return True


TASKS = {"api": api, "table": table.run, "dvc": dvc.run}


def main(names: list[str]) -> int:
    """1 if anything fails."""
    failed = []
    for name in names or TASKS:
        with tempfile.TemporaryDirectory(prefix="lodefs-git-") as folder:
            print(f"{name}:", flush=True)
            if not TASKS[name](Path(folder)):
                failed.append(name)
    print("failed:", *failed) if failed else print("all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    if unknown := sorted(set(sys.argv[1:]) - set(TASKS)):
        sys.exit(f"unknown: {' '.join(unknown)}; there are {', '.join(TASKS)}")
    sys.exit(main(sys.argv[1:]))
