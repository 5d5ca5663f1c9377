"""The command line: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from keyword import iskeyword

import click

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.objects.schemes import FORMS
from lodefs.cli import exit_codes
from lodefs.cli.manual import GroupedCommands
from lodefs.cli.options import output_error, write_line
from lodefs.cli.text import escaped, way_out, without_keys
from lodefs.settings.session import Session

# The groups of the help. Each command has the module of lodefs.commands that holds it, and its line
# in the help. A module is imported when its command runs: the help must not wait for boto3.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Data": {
        "init": ("init", "Create a store."),
        "push": ("push", "Commit a directory, or some files, to a branch."),
        "import": ("import_in_place", "Commit what is in a bucket, without a copy of it."),
        "import-git": ("import_git", "Commit what a Git commit has."),
        "plan": ("plan", "Push with many machines: a plan, its parts, one commit."),
        "pull": ("pull", "Copy a revision into a directory."),
        "cp": ("moving", "Copy a path of a version to another path or repository."),
        "mv": ("moving", "Move a path of a branch to another path or repository."),
        "fork": ("repos", "Make a repository that begins at a version of another one."),
        "repo": ("repos", "Rename a repository."),
        "rm": ("refs", "Delete a repository, a branch or a tag."),
        "undelete": ("refs", "Get deleted data back, or list what is deleted."),
        "copy": ("copy", "Copy repositories to another store."),
        "bundle": ("copy", "Write a revision to one file, and read it into a store."),
        "demo": ("demo", "Push, mount and compare a directory in a temporary store."),
    },
    "Versions": {
        "log": ("history", "Show the commits of a revision, newest first."),
        "diff": ("history", "Show differences between revisions, or changes in a mount."),
        "blame": ("history", "Show which commit last changed a file."),
        "branch": ("refs", "List, create, move and delete branches."),
        "tag": ("refs", "List, create and delete tags."),
        "commit": ("writable", "Commit the changes of a writable mount."),
        "restore": ("writable", "Put paths of a writable mount back as they were."),
        "merge": ("push", "Merge the changes of a revision into a branch."),
        "revert": ("revert", "Undo a commit by a new commit."),
        "reflog": ("history", "Show the earlier commits of a branch or tag."),
    },
    "Reading": {
        "ls": ("ls", "List the repositories, or a directory of a revision."),
        "cat": ("ls", "Write a file's content to standard output."),
        "mount": ("mount", "Mount a revision, read-only or for changes."),
        "unmount": ("mounts", "Unmount a directory."),
        "mounts": ("mounts", "List the mounts of this machine."),
        "run": ("run", "Run a command that sees datasets, without root."),
        "profile": ("profile", "Show what a job does on a mount, and what it waits for."),
    },
    "This node": {
        "status": (
            "status",
            "Show the proxy and the mounts, or the changes in one mount.",
        ),
        "doctor": ("doctor", "Look for what is wrong on this node, and how to fix it."),
        "serve": ("serve", "Run the node's proxy."),
        "token": ("token", "Create, list and delete the proxy's tokens."),
        "warm": ("warm", "Fetch a revision into the node's cache before it is used."),
        "pins": ("warm", "List what is pinned in the node's cache."),
        "evict": ("warm", "Remove pins and cached data of a dataset."),
        "top": ("top", "Show what the proxy serves, live."),
        "stats": ("top", "Write one line per second about what the proxy serves."),
        "version": ("version", "Show the version."),
        "man": ("man", "Show the manual page."),
    },
    "Upkeep of a store": {
        "du": ("du", "Show the size of repositories, and what deleting frees."),
        "quota": ("retain", "Limit the size of a version of a repository."),
        "retain": ("retain", "Set how much of a repository's history is kept."),
        "adopt": ("adopt", "Copy what a version has in a bucket into the store."),
        "gc": ("gc", "Delete what no branch or tag leads to."),
        "purge": ("purge", "Remove a file's bytes from all versions, permanently."),
        "verify": ("verify", "Check a store, a revision, or this node's cache."),
        "scrub": ("verify", "Read and check a part of the store."),
        "repair": ("repair", "Put back what is lost or damaged in a store."),
        "bench-store": ("bench_store", "Measure how fast a store is."),
    },
    "Integrations": {
        "lfs": ("lfs", "Transfer objects for Git LFS."),
        "docker-plugin": ("docker_plugin", "Serve volumes to Docker."),
        "csi": ("csi", "Serve volumes to Kubernetes."),
        "mounter": ("mounter", "Hold mounts for drivers, such as lodefs csi."),
        "slurm": ("slurm", "Mount and warm datasets for Slurm's jobs."),
        "health": ("health", "Check that this node can mount, for Slurm's health check."),
    },
}
# Only the files in deploy/ run these commands: they are in no list.
INTERNAL = {
    "enroot-hook": ("enroot_hook", "Mount datasets into containers of enroot and pyxis."),
    "mounter-ready": ("mounter", "Check that this container's mounter answers."),
    "node-labels": ("node_labels", "Label a Kubernetes node with what is pinned there."),
}
# What git, DVC, rclone and others call what these commands do.
ELSEWHERE = {
    "add": ("push",),
    "checkout": ("mount", "pull", "restore"),
    "clone": ("mount", "pull", "fork"),
    "delete": ("rm",),
    "download": ("pull",),
    "fetch": ("pull", "warm"),
    "fsck": ("verify",),
    "get": ("pull", "cat"),
    "put": ("push",),
    "rename": ("mv", "repo rename"),
    "reset": ("branch --force", "restore"),
    "show": ("cat", "log", "diff"),
    "switch": ("mount",),
    "sync": ("push", "pull"),
    "umount": ("unmount",),
    "upload": ("push",),
}
SHOWN = {name: place for group in GROUPS.values() for name, place in group.items()}
COMMANDS = SHOWN | INTERNAL

EPILOG = """\b
REPO is a name such as vision/flickr30k; REV a branch, a tag, a commit or its unique beginning
of 6 or more digits (default: the branch main), with ~N the commit N before it; PATH a file or
directory inside.

\b
Completion, for the startup file of a shell:
  bash: eval "$(_LODEFS_COMPLETE=bash_source lodefs)"
  zsh:  eval "$(_LODEFS_COMPLETE=zsh_source lodefs)"
  fish: _LODEFS_COMPLETE=fish_source lodefs | source
"""


class OutputClosedError(Exception):
    """Nobody reads our output any more. click handles BrokenPipeError in a way of its own."""


class LazyCommands(GroupedCommands):
    """A group whose commands are imported when they are used."""

    groups = GROUPS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`lodefs help COMMAND` means `lodefs COMMAND --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            _flush_output()
            return result
        except BrokenPipeError:
            raise OutputClosedError from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # here: mostly the command is known

            near = ELSEWHERE.get(args[0]) or get_close_matches(args[0], SHOWN, n=1)
            if not near:
                raise
            message = f"{error.message} Did you mean {' or '.join(near)}?"
            raise click.UsageError(message, error.ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(SHOWN)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"lodefs.commands.{COMMANDS[cmd_name][0]}")
        name = cmd_name.replace("-", "_")
        command = getattr(module, f"{name}_" if iskeyword(name) else name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, SHOWN))  # the same for all groups
        for group, commands in GROUPS.items():
            with formatter.section(group):
                lines = [(name.ljust(width), line) for name, (_, line) in commands.items()]
                formatter.write_dl(lines)


def _show_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:  # noqa: ARG001
    if asked:
        from lodefs.commands.version import number

        write_line(f"lodefs {number()}")
        ctx.exit()


@click.group(
    cls=LazyCommands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--store", metavar="URL", help=f"{FORMS}, or a directory [LODEFS_STORE].")
@click.option("--proxy", metavar="URL", help="unix:/PATH or http(s)://HOST:PORT [LODEFS_PROXY].")
@click.option(
    "-v",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.pass_context
def cli(ctx: click.Context, store: str | None, proxy: str | None) -> None:
    """Versioned datasets in buckets: pushed once, cached once per node, mounted in a second."""
    if not isinstance(ctx.obj, Session):
        ctx.obj = Session(dict(os.environ))
    ctx.obj.apply_options(store=store, proxy=proxy)
    if not gc.isenabled():  # disabled by lodefs.main: modules imported until now stay
        gc.freeze()
        gc.enable()


def run(arguments: Sequence[str] | None, session: Session) -> int:
    """Runs one command line and returns its exit code. An error is one line on standard error."""
    _prepare_streams()
    try:
        cli.main(arguments, prog_name="lodefs", standalone_mode=False, obj=session)
        return session.exit_code
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return exit_codes.USAGE
    except click.ClickException as error:
        return _failed(_with_where_to_look(error), exit_codes.USAGE)
    except (KeyboardInterrupt, click.Abort) as error:
        interrupt = error.__cause__ or error  # click raises Abort from KeyboardInterrupt
        click.echo("; ".join(["lodefs: interrupted", *_notes_of(interrupt)]), err=True)
        return exit_codes.INTERRUPTED
    except OutputClosedError:
        return _quiet_pipe()
    except LodefsError as error:
        if session.debug:
            raise
        parts = [str(error), *_notes_of(error), *way_out(error), *_what_there_is(error)]
        message = without_keys("; ".join(parts))
        return _failed(escaped(message), exit_codes.code_of(error))
    except OSError as error:  # of the local file system, such as a full disk or a missing file
        if session.debug:
            raise
        return _failed(escaped(str(error)), exit_codes.code_of_os(error))
    except Exception as error:  # a bug of lodefs: one line, and how to see more
        if session.debug:
            raise
        message = f"{type(error).__name__}: {escaped(str(error))}"
        return _failed(
            f"{message} (a fault of lodefs; LODEFS_DEBUG=1 shows where)", exit_codes.FAILURE
        )
    finally:
        session.close()


def _notes_of(error: BaseException) -> list[str]:
    """Hints that a command added to an error."""
    return getattr(error, "__notes__", [])


def _what_there_is(error: LodefsError) -> list[str]:
    """Returns the names that the store has instead of one that was not found. The command line may
    see all names."""
    with suppress(LodefsError):
        if isinstance(error, NotFound) and error.instead is not None:
            return [error.instead()]
    return []


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:
        raise output_error(error) from None


def _prepare_streams() -> None:
    """Escapes characters that the terminal's encoding lacks. If standard input or output
    was closed (``<&- >&-``), each read or write fails, as in C."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _with_where_to_look(error: click.ClickException) -> str:
    message = escaped(error.format_message())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return message
    end = "" if message.endswith((".", "?")) else "."  # click's messages end with one
    return f"{message}{end} See `{context.command_path} --help`."


def _failed(message: str, code: int) -> int:
    from lodefs.chunkstore.system.systemd import journald  # here: most commands do not fail

    message = f"lodefs: error: {message}"
    if journald.is_stderr(os.environ):
        message = journald.marked(message, journald.ERROR)
    click.echo(message, err=True)
    return code


def _quiet_pipe() -> int:
    """Ends as a program that SIGPIPE killed: the reader of our output is gone (``| head``)."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())  # else Python complains when it flushes at exit
    os.close(null)
    return 128 + signal.SIGPIPE
