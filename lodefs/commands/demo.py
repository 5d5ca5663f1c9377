"""``lodefs demo``."""

from __future__ import annotations

import os
import shutil

import click

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import Unsupported
from lodefs.cli import exit_codes
from lodefs.cli import options as cli
from lodefs.settings.session import Session


@cli.command("lodefs demo")
def demo(session: Session) -> None:
    """Push two versions of Python's standard library into a temporary store, mount both, and
    compare every byte. The demo leaves nothing behind.
    """
    from lodefs.demo import run

    _in_namespace(session)
    if run(click.echo, session.environment):
        session.exit_code = exit_codes.FAILURE


def _in_namespace(session: Session) -> None:
    """Runs the demo again in a user and mount namespace, if it has neither root nor fusermount3."""
    if os.geteuid() == 0 or shutil.which("fusermount3"):
        return
    unshare = shutil.which("unshare")
    if unshare is None:
        raise Unsupported(
            "mounting without root needs fusermount3 (Debian: apt-get install fuse3) or unshare"
        )
    command = python_process.command("lodefs.main", "demo")
    arguments = [unshare, "--user", "--map-root-user", "--mount", "--", *command]
    os.execve(unshare, arguments, python_process.environment(session.environment))
