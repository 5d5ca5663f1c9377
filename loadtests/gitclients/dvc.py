"""A repository that DVC made, with its remote, pushed and compared with what DVC checks out."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from loadtests.s3clients.environments import python_of

TIMEOUT_S = 600.0
TEXT = b"one\r\ntwo\r\n" * 300_000  # in which the MD5 of DVC 2 leaves the CR out


def run(folder: Path) -> bool:
    """Whether what was pushed is what DVC has, from its cache and from its remote alone."""
    repository, environ = folder / "repository", _environment(folder)
    _make(repository, folder / "remote", environ)
    _lodefs(environ, "init", environ["LODEFS_STORE"])
    _lodefs(environ, "push", str(repository), "cats")
    first = _files(environ, folder / "first")
    assert first == _wanted(repository)
    print(f"  {len(first)} files from the cache", flush=True)
    shutil.rmtree(repository / ".dvc" / "cache")
    _lodefs(environ, "push", str(repository), "again")
    assert _files(environ, folder / "again", "again") == first
    print("  the same from the remote", flush=True)
    old, new = folder / "remote" / "files" / "md5", folder / "elsewhere"
    old.rename(new)
    done = _run(environ, "push", str(repository), "lost")
    assert done.returncode and "dvc fetch" in done.stderr, done.stderr
    print("  missing objects are named", flush=True)
    return _legacy(folder)


def _legacy(folder: Path) -> bool:
    """Whether an MD5 of DVC 2, as DVC computes it, is understood."""
    from lodefs.chunkstore.push.dvc.objects import check
    from lodefs.chunkstore.push.dvc.pointers import Out

    file = folder / "text"
    file.write_bytes(TEXT)
    program = (
        "import sys; from dvc_data.hashfile.hash import file_md5; "
        "from dvc_objects.fs.local import localfs; "
        "print(file_md5(sys.argv[1], localfs, name='md5-dos2unix'))"
    )
    words: list[str | Path] = [python_of("dvc"), "-c", program, file]
    md5 = subprocess.run(
        words, check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    ).stdout.strip()
    check(Out(b"text", md5, is_directory=False, is_legacy=True), str(file), [TEXT])
    print("  an MD5 of DVC 2 fits", flush=True)
    return True


def _make(repository: Path, remote: Path, environ: dict[str, str]) -> None:
    """Makes a repository with a file, a directory and the output of a stage."""
    rng = random.Random(1)
    (repository / "images" / "sub").mkdir(parents=True)
    (repository / "large.bin").write_bytes(rng.randbytes(20_000_000))
    for number in range(200):
        name = f"{'sub/' if number % 2 else ''}{number}.png"
        (repository / "images" / name).write_bytes(rng.randbytes(number * 100))
    (repository / "train.py").write_text("open('model', 'w').write('weights')")

    def git_dvc(*words: str) -> None:
        subprocess.run(
            words, cwd=repository, env=environ, check=True, capture_output=True, timeout=TIMEOUT_S
        )

    dvc = [str(python_of("dvc")), "-m", "dvc"]
    git_dvc("git", "init", "-q")
    git_dvc(*dvc, "init", "-q")
    git_dvc(*dvc, "remote", "add", "-d", "far", str(remote))
    git_dvc(*dvc, "add", "-q", "large.bin", "images")
    git_dvc(*dvc, "stage", "add", "-q", "--run", "-n", "train", "-o", "model", "python3 train.py")
    git_dvc(*dvc, "push", "-q")


def _wanted(repository: Path) -> dict[str, bytes]:
    found = {}
    for path in repository.rglob("*"):
        name = str(path.relative_to(repository))
        if path.is_file() and not name.startswith((".git/", ".dvc/")) and path.suffix != ".dvc":
            found[name] = path.read_bytes()
    return found


def _files(environ: dict[str, str], target: Path, repo: str = "cats") -> dict[str, bytes]:
    _lodefs(environ, "pull", repo, str(target))
    own = target / ".lodefs"
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file() and own not in path.parents
    }


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(folder),
        "LODEFS_STORE": str(folder / "store"),
        "LODEFS_CONFIG": os.devnull,
        "DVC_NO_ANALYTICS": "1",
    }


def _lodefs(environ: dict[str, str], *words: str) -> None:
    done = _run(environ, *words)
    assert done.returncode == 0, done.stderr


def _run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lodefs.main", *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
