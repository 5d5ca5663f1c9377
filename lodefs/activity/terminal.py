"""A terminal that is drawn on: set up on entry, as it was before on exit, whatever happens.

Source: ECMA-48 and xterm's control sequences for the alternate screen; termios(3).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType

from lodefs.activity.screen import Size
from lodefs.cli.options import output_error

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def is_usable() -> bool:
    """Whether there is a terminal to draw on and to read keys from."""
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
    return sys.stdout.isatty() and sys.stdin.isatty() and not dumb


class Terminal:
    """A context manager; only for the main thread, since SIGTERM and SIGHUP end it, too."""

    def __enter__(self) -> Terminal:
        self._fd = sys.stdin.fileno()
        self._modes = termios.tcgetattr(self._fd)
        self._handlers = {number: signal.signal(number, _end) for number in _SIGNALS}
        try:
            tty.setcbreak(self._fd)  # keys at once; Ctrl-C stays a signal
            modes = termios.tcgetattr(self._fd)
            modes[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the shell on this screen
            termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
            self._write(_ENTER)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._write(_LEAVE)
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def draw(self, lines: Sequence[str]) -> None:
        """Shows lines, which must fit. OSError."""
        body = "\r\n".join(line + _END_OF_LINE for line in lines)
        self._write(_HOME + body + _END_OF_SCREEN)

    def key(self, timeout_s: float) -> str:
        """A key that is pressed within this time; "" without. "q" if there is no keyboard more."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, timeout_s))
        if not ready:
            return ""
        data = os.read(self._fd, 64)
        return data.decode("utf-8", "replace")[0] if data else "q"

    @staticmethod
    def size() -> Size:
        """As it is now."""
        found = shutil.get_terminal_size()
        return Size(found.columns, found.lines)

    @staticmethod
    def _write(data: str) -> None:
        try:
            sys.stdout.write(data)
            sys.stdout.flush()
        except OSError as error:
            raise output_error(error) from None


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
