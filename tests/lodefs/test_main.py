"""main.py: help, errors, exit codes, signals, pipes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.app import COMMANDS, ELSEWHERE, GROUPS, INTERNAL, SHOWN, cli, run
from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.repo.store import create_store
from lodefs.cli import exit_codes
from lodefs.settings.session import Session
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs

TIMEOUT_S = 120
HEAVY = ("boto3", "botocore", "aiohttp", "rich", "rocksdict", "fastcdc", "zstandard", "uvloop")


def test_help_lists_every_command(lodefs: Lodefs) -> None:
    """--help and -h name all commands in their groups, but what only deploy/ runs, and how
    completion is set up."""
    for option in ("--help", "-h"):
        ran = lodefs(option)
        assert ran.code == 0
        for shell in ("bash", "zsh", "fish"):
            assert f"_LODEFS_COMPLETE={shell}_source lodefs" in ran.out
        for group, commands in GROUPS.items():
            shown = ran.out.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
            told = dict(line.strip().split(maxsplit=1) for line in shown.splitlines())
            assert told == {name: line for name, (_, line) in commands.items()}
        assert not [name for name in INTERNAL if f" {name} " in ran.out]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(lodefs: Lodefs, name: str) -> None:
    """Every command says what it does."""
    ran = lodefs(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: lodefs {name} ")


def test_without_a_command(lodefs: Lodefs) -> None:
    """lodefs alone shows the help, with the code of a mistake."""
    ran = lodefs()
    assert ran.code == 2
    assert "\nVersions:\n" in ran.out + ran.err


@pytest.mark.parametrize(("umask", "of_root"), [(0, 0o002), (0o020, 0o022), (0o077, 0o077)])
def test_nothing_of_roots_is_everybodys_to_change(umask: int, of_root: int) -> None:
    """Whatever umask it is started with: /run/lodefs, records of jobs, hooks. A user's is kept."""
    program = (
        "import os, lodefs.app\n"
        "from lodefs.main import main\n"
        "lodefs.app.run = lambda *_: print(os.umask(0))\n"
        "main([])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        umask=umask,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert int(ran.stdout) == (of_root if os.geteuid() == 0 else umask)


@pytest.mark.parametrize(("library", "printed"), [("mpi4py.MPI", ""), ("other", "cut off\n")])
def test_a_rank_of_mpi_ends_as_its_library_wants_it(library: str, printed: str) -> None:
    """It is not cut off before MPI is finalized; other processes are, since that is faster."""
    program = (
        "import os, sys, lodefs.app\n"
        "from lodefs.main import main\n"
        "lodefs.app.run = lambda *_: 0\n"
        "os._exit = lambda _: print('cut off')\n"
        f"sys.modules[{library!r}] = os\n"
        "main([])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert ran.stdout == printed


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["push", "--help"]])
def test_start_up_imports_nothing_heavy(arguments: list[str]) -> None:
    """Help and version load no library that takes long to import."""
    script = (
        "import sys\n"
        "from lodefs.app import run\n"
        "from lodefs.settings.session import Session\n"
        f"code = run({arguments!r}, Session({{}}))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stderr.strip() == "[]"


ERRORS = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and one.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_its_code(kind: type[LodefsError]) -> None:
    """Each class of error ends with a fixed code of its own family; only the base has 1."""
    error = kind.__new__(kind, "x")  # some have more to tell
    code = exit_codes.code_of(error)
    assert (code == exit_codes.FAILURE) == (kind is LodefsError)
    assert code not in (exit_codes.OK, exit_codes.INTERRUPTED)


def test_codes_are_fixed() -> None:
    """Scripts rely on these numbers."""
    expected = {
        errors.InvalidInput: 2,
        errors.NotFound: 3,
        errors.NotADirectory: 3,
        errors.AlreadyExists: 4,
        errors.Conflict: 5,
        errors.Denied: 6,
        errors.Unavailable: 7,
        errors.DeadlineExceeded: 7,
        errors.Corrupt: 8,
        errors.UnknownFormat: 9,
        errors.NoSpace: 10,
        errors.InUse: 11,
        errors.Unsupported: 12,
        errors.SourceChanged: 13,
        errors.TooManyRemovals: 14,
        errors.Diverged: 15,
    }
    assert {kind: exit_codes.code_of(kind("x")) for kind in expected} == expected


class Failing(Session):
    """A session whose store fails as told."""

    def __init__(self, error: BaseException, **environment: str) -> None:
        super().__init__({"LODEFS_STORE": "s3://memory", **environment})
        self._error = error

    def objects(self, url: str) -> MemoryObjects:
        raise self._error


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (errors.Denied("the key\x1b[2J id is wrong"), 6, "error: the key\\x1b[2J id is wrong\n"),
        (OSError(errno.ENOSPC, "No space left"), 10, "No space left"),
        (OSError(errno.EACCES, "Permission denied"), 6, "Permission denied"),
        (OSError(errno.EIO, "Input/output error"), 1, "Input/output error"),
        (ValueError("odd"), 1, "ValueError: odd (a fault of lodefs; LODEFS_DEBUG=1 shows where)"),
        (KeyboardInterrupt(), 130, "lodefs: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_are_one_line(
    capfd: pytest.CaptureFixture[str], error: BaseException, code: int, told: str
) -> None:
    """Whatever goes wrong is one line on standard error, without what a terminal would obey."""
    assert run(["ls", "r"], Failing(error)) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert told in err
    assert err.strip().count("\n") == 0


def test_debug_shows_the_traceback() -> None:
    """With LODEFS_DEBUG errors are raised as they are."""
    with pytest.raises(errors.Corrupt):
        run(["ls", "r"], Failing(errors.Corrupt("x"), LODEFS_DEBUG="1"))


@pytest.mark.slow
def test_closed_pipe_is_quiet() -> None:
    """A reader that goes away ends the command without a word, as SIGPIPE would."""
    script = (
        "import sys\n"
        "from tests.support.chunkstore.memory_objects import MemoryObjects\n"
        "from lodefs.chunkstore.repo.store import create_store\n"
        "from tests.support.chunkstore.handmade import Handmade\n"
        "from lodefs.app import run\n"
        "from lodefs.settings.session import Session\n"
        "objects = MemoryObjects()\n"
        "files = {b'%d' % n * 20: b'' for n in range(20000)}\n"
        "Handmade(create_store(objects), chunk_size_bytes=10**6).commit('r', files)\n"
        "class Memory(Session):\n"
        "    def objects(self, url):\n"
        "        return objects\n"
        "sys.exit(run(['ls', 'r'], Memory({'LODEFS_STORE': 'memory:'})))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 141


def test_store_option_stands_before_or_after_the_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """--store may be given to lodefs or to the command, and wins over the environment."""
    asked = []
    objects = MemoryObjects()
    Handmade(create_store(objects)).commit("r", {b"x": b"1"})

    class Asked(Session):
        def objects(self, url: str) -> MemoryObjects:
            asked.append(url)
            return objects

    environment = {"LODEFS_STORE": "/from/environment"}
    assert run(["ls", "r"], Asked(environment)) == 0
    assert run(["--store", "s3://b/p", "ls", "r"], Asked(environment)) == 0
    assert run(["ls", "r", "--store", "relative"], Asked(environment)) == 0
    assert asked[:2] == ["/from/environment", "s3://b/p"]
    assert asked[2].startswith("/")
    assert asked[2].endswith("/relative")
    capfd.readouterr()


def test_commands_are_found_without_importing_them() -> None:
    """The group's list of commands is the table, and unknown names are none of its."""
    import click

    context = click.Context(cli)
    assert cli.list_commands(context) == list(SHOWN)
    assert cli.get_command(context, "no-such") is None


def test_a_mistyped_command(lodefs: Lodefs) -> None:
    """A command that does not exist is told with the nearest that does, if one is near."""
    assert "'psuh'. Did you mean push?" in lodefs("psuh").err
    assert "Did you mean" not in lodefs("xyzzy").err


def test_a_command_of_another_program(lodefs: Lodefs) -> None:
    """What git and others call a command is told with what lodefs calls it, also if another name is
    nearer: delete is not undelete."""
    assert "'clone'. Did you mean mount or pull or fork?" in lodefs("clone", "vision/cats").err
    assert "Did you mean rm?" in lodefs("delete").err
    assert not ELSEWHERE.keys() & COMMANDS.keys()
    named = {words.split()[0] for known in ELSEWHERE.values() for words in known}
    assert named <= SHOWN.keys()


@pytest.mark.parametrize("words", [["evict"], ["push"], ["psuh"]])
def test_usage_errors_are_sentences(lodefs: Lodefs, words: list[str]) -> None:
    """What is wrong with the words ends with one full stop or question mark, and then follows
    where to look."""
    said = lodefs(*words).err.partition(" See `")[0]
    assert said[-1] in ".?"
    assert said[-2] not in ".?"


def test_version_option(lodefs: Lodefs) -> None:
    """--version says what the command says."""
    ran = lodefs("--version")
    assert ran.code == 0
    assert ran.out == lodefs("version").out


def test_full_output() -> None:
    """Where the output cannot be written, the error says that it is the output."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lodefs.main", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 10
    assert "standard output" in done.stderr.splitlines()[0]


def test_closed_output() -> None:
    """Where there is no standard output at all, that is told too, and is no fault of lodefs."""
    done = subprocess.run(
        ["sh", "-c", '"$0" -m lodefs.main version >&-', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "lodefs: error: [Errno 9] Bad file descriptor: 'standard output'\n"


def test_closed_input(tmp_path: Path) -> None:
    """Where there is no standard input, a push from it fails, and is no fault of lodefs."""
    lodefs = '"$0" -m lodefs.main --store "$1"'
    script = f'{lodefs} init "$1" && {lodefs} push - a/b:c <&-'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, str(tmp_path / "store")],
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "Bad file descriptor" in done.stderr and "fault of lodefs" not in done.stderr
