"""``lodefs enroot-hook``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import InvalidInput
from lodefs.cli import options as cli
from lodefs.settings.datasets import VARIABLE, Dataset, parse_list
from lodefs.settings.session import Session

NAME = "50-lodefs.sh"  # after devices, before GPUs
SYSTEM_DIR = Path("/etc/enroot/hooks.d")
LINKS_MAX = 40  # the kernel's limit
# deploy/enroot holds this script for the package's program. The script starts no program if there
# is nothing to do, so that it costs a container only a few milliseconds.
SCRIPT = """\
#!/bin/sh
# Mounts the datasets of LODEFS_DATASETS into a container that enroot starts, without privilege:
# REPO[@REV][:PATH]:DIR[:rw], with commas between them, of the environment or `enroot start --env`.
# Ends at once where there are none. See `lodefs enroot-hook --help`.
set -eu

found=${LODEFS_DATASETS-}
if [ -z "$found" ] && [ -r "${ENROOT_ENVIRON-}" ]; then
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in LODEFS_DATASETS=?*) found=$line ;; esac
  done <"$ENROOT_ENVIRON"
fi
[ -n "$found" ] || exit 0
exec PROGRAM enroot-hook
"""


@cli.command(
    "lodefs enroot-hook --install",
    "enroot start --env LODEFS_DATASETS=vision/cats@v1:/data IMAGE ls /data",
    name="enroot-hook",
)
def enroot_hook(
    session: Session,
    install: bool = cli.option(
        "Install the hook for this user or, as root, for all users of this machine."
    ),
) -> None:
    """Mount datasets into a container that enroot or pyxis starts.

    LODEFS_DATASETS names them: REPO[@REV][:PATH]:DIR, with commas between them, set for the job or
    by `enroot start --env`. Each is mounted read-only on DIR of the container; a missing DIR is
    created. The mounts end with the container. The hook needs no privilege.

    With REPO@BRANCH:DIR:rw,commit=never the container may change a dataset. Its changes are kept
    when it ends: `lodefs mounts --uncommitted` lists them, and `lodefs commit` commits them.
    """
    if install:
        cli.write_line(f"installed {_install(session.environment)}")
        return
    environment = session.environment
    root = os.path.realpath(environment.get("ENROOT_ROOTFS", "/"))
    if root == "/":
        raise click.UsageError(
            "only enroot calls this, and sets ENROOT_ROOTFS; --install installs the hook"
        )
    datasets = parse_list(_wanted(environment))
    if not datasets:
        return
    for dataset in datasets:
        _check_kept(dataset)
    from lodefs.api import job_mounts  # here: mistakes above are told at once

    places = [(inside(root, dataset.directory), dataset) for dataset in datasets]
    job_mounts.mount_in_container([one for one in places if not _is_there(*one)], session, cli.warn)


def _check_kept(dataset: Dataset) -> None:
    """InvalidInput where changes are to be committed, for which nothing of the hook is left when
    the container ends."""
    if not dataset.is_writable or (dataset.when == "never" and not dataset.branch):
        return
    raise InvalidInput(
        f"{dataset}: enroot's hook ends before the container, and can only keep what that changes: "
        "say `:rw,commit=never`, and commit it afterwards by `lodefs commit`; or have `lodefs run "
        "REPO@BRANCH:DIR:rw -- enroot start --mount DIR:/data ...` commit it"
    )


def _wanted(environment: Mapping[str, str]) -> str:
    """The list of datasets. ``--env`` of enroot writes it into a file alone, which wins."""
    found = environment.get(VARIABLE, "")
    with suppress(OSError):
        for line in Path(environment.get("ENROOT_ENVIRON", "")).read_bytes().splitlines():
            name, _, value = line.partition(b"=")
            if name == VARIABLE.encode():
                found = os.fsdecode(value)
    return found


def inside(root: str, directory: str) -> str:
    """Returns the host's path of a directory in a container; ``root`` is the container's root on
    the host. Symlinks and ".." do not lead out of the root. Missing names are kept. Raises:
    InvalidInput for a loop."""
    todo, place, links = directory.split("/")[::-1], list[str](), 0
    while todo:
        name = todo.pop()
        if name == "..":
            del place[-1:]
        if name in ("", ".", ".."):
            continue
        try:
            target = os.readlink(os.path.join(root, *place, name))
        except OSError:
            place.append(name)
            continue
        links += 1
        if links > LINKS_MAX:
            raise InvalidInput(f"{directory}: too many symlinks in the container")
        if target.startswith("/"):
            place = []
        todo += target.split("/")[::-1]
    return os.path.join(root, *place)


def _is_there(place: str, dataset: Dataset) -> bool:
    """Whether this hook has mounted the dataset before, because it is installed twice."""
    from lodefs.mount.kernel import mount_table

    found = mount_table.on_top(place)
    wanted = (dataset.spec.repo, dataset.spec.path)
    kind = found is not None and (found.is_writable if dataset.is_writable else found.is_lodefs)
    return found is not None and kind and (found.repo, found.path) == wanted


def _install(environment: Mapping[str, str]) -> Path:
    """Installs the hook where enroot looks for hooks, and returns its path. Raises: OSError."""
    if os.geteuid() == 0:
        folder = SYSTEM_DIR
    else:
        config = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        folder = Path(environment.get("ENROOT_CONFIG_PATH") or f"{config}/enroot") / "hooks.d"
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{NAME}.{os.getpid()}"
    unfinished.write_text(script(_program()))
    unfinished.chmod(0o755)
    unfinished.rename(folder / NAME)
    return folder / NAME


def script(program: str) -> str:
    """Returns the hook's script, which calls this lodefs."""
    return SCRIPT.replace("PROGRAM", program)


def _program() -> str:
    """Returns the command line of this program, which a shell can call from any directory."""
    found = shutil.which(sys.argv[0])
    if found is not None and os.path.basename(found) == "lodefs":
        return shlex.quote(os.path.abspath(found))
    return shlex.join(python_process.command("lodefs.main"))
