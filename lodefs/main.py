"""The entry point of the program, which makes each command start and end fast.

Nothing that takes time to import is imported before ``main``.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import MutableMapping, Sequence

_OTHERS_WRITE = 0o002
TEMPORARY = ("TMPDIR", "TEMP", "TMP")  # as Python looks for it


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command line and exits with its exit code."""
    gc.disable()  # collecting garbage among imported modules takes a sixth of the start
    code: int | None = None

    def end() -> None:
        """Leaves all memory to the kernel: freeing it piece by piece takes longer. A rank of MPI
        has to end as its library wants it, or ``mpiexec`` reports a crash."""
        if "mpi4py.MPI" in sys.modules:
            return
        if code is not None and (_flush() or code):
            os._exit(code)

    atexit.register(
        end
    )  # the first one registered is called last, after threads and all others have ended
    from lodefs.app import run
    from lodefs.cli.options import warn
    from lodefs.settings.session import Session

    if "_LODEFS_COMPLETE" in os.environ:  # a shell asks for completions
        from lodefs.cli import completion

        completion.register()
    session = Session(dict(os.environ), umask=_guarded_umask())
    for line in leave_others_directories(os.environ):
        warn(line)
    code = run(arguments, session)
    sys.exit(code)


def leave_others_directories(environ: MutableMapping[str, str]) -> list[str]:
    """Root may have the environment of a user, after su(1) or ``sudo -E``. Removes from it each
    directory for temporary files in which that user can move root's files, and returns a line for
    each."""
    named = [name for name in TEMPORARY if environ.get(name)]
    if not named or os.geteuid() != 0:
        return []
    from lodefs.chunkstore.system.safe_open import keeps_names  # not at each start
    from lodefs.mount.kernel.namespaces import in_first_user_namespace

    if not in_first_user_namespace():
        return []  # root of a user namespace has no more rights than its owner
    return [
        f"{name}={environ.pop(name)} is not used: others can change what root makes there"
        for name in named
        if not keeps_names(environ[name])
    ]


def _guarded_umask() -> int:
    """Returns the umask that this process was started with. From now on, whatever it was, no file
    of root's can be written by everybody."""
    umask = os.umask(_OTHERS_WRITE)
    os.umask(umask | _OTHERS_WRITE if os.geteuid() == 0 else umask)
    return umask


def _flush() -> bool:
    """Whether all output was written. If it was not, and no error was reported so far, Python says
    why at exit."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
