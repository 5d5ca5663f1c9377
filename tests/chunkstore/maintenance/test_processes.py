"""Gc runs beside pushes, in processes of their own, over a real Ceph RGW."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.services import S3Server
from tests.support.chunkstore.child_process import private_directory

ROUNDS = 2
TIMEOUT_S = 240
COMMIT = """
import os, sys
from lodefs.app import run
from lodefs.settings.session import Session

name, rounds = sys.argv[1], int(sys.argv[2])
for n in range(rounds):
    os.makedirs(name, exist_ok=True)
    for file in ("same", "other"):
        with open(f"{name}/{file}", "wb") as out:
            out.write((file if file == "same" else f"{name}{n}").encode() * 5000)
    for words in (
        ["push", name, "r@" + name, "--allow-removals"],
        ["tag", "--force", "r@" + name, "v-" + name],
        ["branch", "--delete", "r", name],
    ):
        code = run(words, Session(dict(os.environ)))
        assert code == 0, words
"""
COLLECT = """
import os, sys
from lodefs.app import run
from lodefs.settings.session import Session

for _ in range(int(sys.argv[2])):
    code = run(["gc", "--grace", "1s"], Session(dict(os.environ)))
    assert code in (0, 8), code  # 8: it read a ref before that moved, and its commit was deleted
"""
FINISH = """
import contextlib, io, os
from lodefs.app import run
from lodefs.settings.session import Session

def said(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(list(words), Session(dict(os.environ)))
    assert code == 0, words
    return out.getvalue()

for _ in range(2):
    said("gc", "--grace", "1s")
assert "all is well" in said("verify", "--data")
for _ in range(20):  # until all that was tombstoned is ripe
    if '"garbage_packs": 0' in said("gc", "--grace", "1s", "--json"):
        break
else:
    raise AssertionError("the garbage stays")
"""


def lodefs(home: Path, *words: str, program: str = "") -> subprocess.Popen[str]:
    """A command, or a program that runs some."""
    what = ["-c", program] if program else ["-m", "lodefs.main"]
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, *what, *words],
        cwd=home,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """What it wrote."""
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out
    return out


@pytest.mark.rgw
@pytest.mark.slow
def test_beside_each_other(rgw: S3Server, rgw_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers that push, tag and delete branches, and two gc runs with hardly a grace time,
    all in processes of their own: no command fails, every reference resolves, every byte is
    right, and the garbage goes."""
    monkeypatch.setenv("LODEFS_STORE", f"s3://{rgw_bucket}/store")
    monkeypatch.setenv("AWS_ENDPOINT_URL", rgw.endpoint_url)
    with private_directory() as home:
        end(lodefs(home, "init", f"s3://{rgw_bucket}/store"))
        running = [lodefs(home, name, str(ROUNDS), program=COMMIT) for name in ("a", "b")]
        running += [lodefs(home, "", str(ROUNDS), program=COLLECT) for _ in range(2)]
        for process in running:
            end(process)
        end(lodefs(home, program=FINISH))
