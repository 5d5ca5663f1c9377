"""The program: what makes each command start and end fast.

Nothing is imported before ``main`` that takes time.
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
    """Runs one command line and leaves the process with its exit code."""
    gc.disable()  # a sixth of the start goes into looking for garbage among what is imported
    code: int | None = None

    def end() -> None:
        """Leave everything to the kernel: freeing it piece by piece takes longer."""
        if code is not None and (_flush() or code):
            os._exit(code)

    atexit.register(end)  # the first one is called last: threads and all others are done by then
    from lodefs.app import run
    from lodefs.cli.options import warn
    from lodefs.settings.session import Session

    if "_LODEFS_COMPLETE" in os.environ:  # a shell asks
        from lodefs.cli import completion

        completion.register()
    session = Session(dict(os.environ), umask=_guarded_umask())
    for line in leave_others_directories(os.environ):
        warn(line)
    code = run(arguments, session)
    sys.exit(code)


def leave_others_directories(environ: MutableMapping[str, str]) -> list[str]:
    """Root may have the environment of a user, after su(1) or ``sudo -E``. Takes out of it each
    directory for temporary files in which that user can move what root makes; returns a line for
    each."""
    named = [name for name in TEMPORARY if environ.get(name)]
    if not named or os.geteuid() != 0:
        return []
    from lodefs.chunkstore.system.safe_open import keeps_names  # not at each start
    from lodefs.mount.kernel.namespaces import in_first_user_namespace

    if not in_first_user_namespace():
        return []  # its root has no more rights than who made that
    return [
        f"{name}={environ.pop(name)} is not used: others can change what root makes there"
        for name in named
        if not keeps_names(environ[name])
    ]


def _guarded_umask() -> int:
    """The umask that this process was started with. Nothing of root's is everybody's to change from
    now on, whatever it was."""
    umask = os.umask(_OTHERS_WRITE)
    os.umask(umask | _OTHERS_WRITE if os.geteuid() == 0 else umask)
    return umask


def _flush() -> bool:
    """Whether all that was written is out. Where it is not, and nobody told an error so far,
    Python says at its end why not."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
