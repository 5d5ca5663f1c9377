"""The tree of errors. Only the edges map it to HTTP statuses, errno and exit codes.

Every message names the thing (key, path, repository) and the remedy, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable

# Fits into a log line, and into a gRPC status even if each byte becomes three
TOLD_BYTES_MAX = 2000
_TOLD_END_BYTES = 500


class LodefsError(Exception):
    """Base of all errors that lodefs raises on purpose. Tasks on other machines return errors by
    pickle, which works whatever their constructors take."""

    def __reduce__(self) -> tuple[object, ...]:
        state = {name: value for name, value in vars(self).items() if not callable(value)}
        return _unpickled, (type(self), self.args), state


def _unpickled(kind: type[LodefsError], args: tuple[object, ...]) -> LodefsError:
    return kind.__new__(kind, *args)


class NotFound(LodefsError):
    """The named thing (object, repository, revision, path) does not exist. ``instead``, if set,
    reads the store and returns what exists, for callers who may see all of it: the message never
    does."""

    instead: Callable[[], str] | None = None


class Expired(NotFound):
    """The retention policy of a repository has deleted a commit of its history."""


class Renamed(NotFound):
    """A repository is now called ``to``, and its old name leads there for a time. Callers who may
    read that continue there. The message does not name it."""

    to: str = ""


class NotADirectory(NotFound):
    """A path goes through something that is not a directory."""


class AlreadyExists(LodefsError):
    """A conditional write found the thing there already."""


class Conflict(LodefsError):
    """Another writer moved the ref first. Nothing is lost, and the caller can retry."""


class Diverged(LodefsError):
    """Two sides have diverged, and somebody must choose: retrying does not help."""


class Changed(LodefsError):
    """An object is not the version that was asked for (HTTP 412): read its index again."""


class Corrupt(LodefsError):
    """Bytes do not match their digest or break their format."""


class Purged(LodefsError):
    """Bytes that somebody has purged: removed from all versions for good."""


class SourceLost(Corrupt):
    """Bytes that lie in place in somebody's bucket are gone: the object there was changed, deleted
    or archived. Asking again does not help."""


class TooLarge(Corrupt):
    """An object has, or claims, more bytes than its format allows. They are not kept in memory."""


class UnknownFormat(LodefsError):
    """Bytes of a format version that this lodefs does not know."""


# The errors of an object that cannot be used, while the rest of its store can.
UNREADABLE = (NotFound, Corrupt, UnknownFormat)


class Unavailable(LodefsError):
    """A store, peer or proxy did not answer, or asked for a retry later. May be retried."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_throttled = False  # the other side asks for fewer requests
        self.lasting_s = 0.0  # for how long it has only failed
        self.is_unreached = False  # nothing has ever answered there: the address may be wrong


class Held(Unavailable):
    """A store throttles, so this request was not sent."""


class UnderWay(Unavailable):
    """The other side has begun what was asked for, which takes long: ask again."""


class DeadlineExceeded(Unavailable):
    """The time given for an operation ran out."""


class Denied(LodefsError):
    """Credentials are missing, wrong, or do not allow this."""


class SourceUnknown(Denied):
    """Bytes lie in a source that the settings of this reader do not name."""


class NoSpace(LodefsError):
    """A disk or a limit is full."""


class InvalidInput(LodefsError):
    """An input is malformed: a name, an option, a range, a setting."""


class Unsupported(LodefsError):
    """The other side lacks something that lodefs needs (conditional writes, a kernel feature)."""


class SourceChanged(LodefsError):
    """A file was changed or vanished while it was pushed."""


class TooManyRemovals(LodefsError):
    """A push would remove most of a branch, and this was not allowed explicitly."""


class InUse(LodefsError):
    """A cache directory, mount point or socket belongs to another living process."""


def told(text: str) -> str:
    """Returns the text of an error for clients: one line. If a client has sent something
    long, its middle is left out."""
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    data = line.encode()
    if len(data) <= TOLD_BYTES_MAX:
        return line
    begin, end = data[: TOLD_BYTES_MAX - _TOLD_END_BYTES], data[-_TOLD_END_BYTES:]
    return f"{begin.decode(errors='ignore')} [...] {end.decode(errors='ignore')}"
