"""``lodefs lfs``."""

from __future__ import annotations

import sys

import click

from lodefs.cli import options as cli
from lodefs.settings.session import Session


@click.group(epilog=cli.examples("lodefs lfs agent    # git lfs starts it"))
def lfs() -> None:
    """Transfer objects for Git LFS, on machines that run Git."""


@cli.command(
    "git config --global lfs.customtransfer.lodefs.path lodefs",
    "git config --global lfs.customtransfer.lodefs.args 'lfs agent'",
    "lodefs lfs agent    # what git lfs starts",
    group=lfs,
    proxy=True,
)
def agent(session: Session) -> None:
    """Transfer objects for `git lfs`, which starts this command.

    An upload sends only chunks that the repository's objects do not have. A download comes from
    this node's proxy if there is one, and goes on where an earlier one ended. Servers that do not
    know the agent get whole objects.
    """
    from lodefs.lfs.agent import serve
    from lodefs.lfs.transfers import ServerTransfers
    from lodefs.lfs.users_git import objects_folder
    from lodefs.proxies.own_proxy import node_socket

    transfers = ServerTransfers(node_socket(session), objects_folder())
    serve(sys.stdin.buffer, sys.stdout.buffer, transfers)
