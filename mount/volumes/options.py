"""Values of options that a volume has, whoever asks for it. Pure.

Options can be read by others than those who wrote them. So a value that may be a secret is never
repeated in a message.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.foreign.git_url import HEAD
from lodefs.chunkstore.format.names import split_path
from lodefs.chunkstore.objects.schemes import FORMS, SETTINGS, scheme_of
from lodefs.chunkstore.protocol.cache_control import PIN_S_MAX
from lodefs.chunkstore.system.durations import parse_duration
from lodefs.mount.options import MODE_MAX

ON_LAST, NEVER, DISCARD = "on-last", "never", "discard"  # what becomes of a volume's changes
WHOLE_LIFE = 0  # of a pin: as long as the volume is there
_ID_MAX = 2**32 - 2  # the last one means "unchanged" to chown(2)
_MODE = re.compile(r"(?:0?|0o)[0-7]{3}\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
_BUCKET = re.compile(r"[A-Za-z0-9._-]*\Z")  # and no credentials, escaped ones neither


def store_url(text: str) -> str:
    """Returns the URL of a store, or its path. Raises: InvalidInput, which does not repeat the
    text."""
    if not text:
        raise InvalidInput("the value is empty")
    if not text.isprintable():
        raise InvalidInput("the value has characters that cannot be printed")
    if text.startswith("/"):
        return text
    try:
        parts = urlsplit(text)
        settings = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise InvalidInput("it is not a URL") from None
    if not _BUCKET.match(parts.netloc) or any("@" in part for pair in settings for part in pair):
        raise InvalidInput(
            "a URL must not carry credentials, since others see it; they belong in the proxy's "
            "settings. A bucket has letters, digits, '.', '_', '-'"
        )
    scheme = scheme_of(text)
    if not text.startswith((f"{scheme}://", "file://")):
        raise InvalidInput(f"it must be {FORMS}, file:///DIR or /DIR")
    if text.startswith("file:") and (parts.query or parts.fragment):
        raise InvalidInput("file:///DIR takes no settings; a '?' or '#' in DIR is %3F or %23")
    known = SETTINGS.get(scheme, ())
    if parts.fragment or not set(known).issuperset(name for name, _ in settings):
        takes = f"{' and '.join(known)}, and no others" if known else "no settings"
        raise InvalidInput(f"the URL of such a store takes {takes}")
    return text


def git_revision(commit: str | None, ref: str | None, problems: list[str]) -> str:
    """Returns the revision of a Git repository that the options ``commit`` or ``ref`` name, each
    checked by git_url.check_rev; adds what is wrong to ``problems``."""
    if commit and ref:
        problems.append("give commit or ref, not both")
    if commit and not git.id_in(f"git:{commit}"):
        problems.append("commit is the id of a Git commit; ref names a branch or tag")
    try:
        return git.revision_of(commit or ref or HEAD)
    except InvalidInput as error:
        problems.append(f"option ref: {error}")
        return ""


def directory(text: str) -> bytes:
    """Returns the path of a directory in a commit, without empty parts. Raises: InvalidInput."""
    try:
        return b"/".join(split_path(text.encode()))
    except UnicodeEncodeError:
        raise InvalidInput("it is not UTF-8") from None


def owner(text: str) -> int:
    """Returns the number of a user or a group. Raises: InvalidInput."""
    if not _NUMBER.match(text) or int(text) > _ID_MAX:
        raise InvalidInput(f"{text[:20]!r} is not a number from 0 to {_ID_MAX}")
    return int(text)


def mode(text: str) -> int:
    """Returns octal permissions. Raises: InvalidInput."""
    if not _MODE.match(text) or int(text, 8) & ~MODE_MAX:
        raise InvalidInput(f"{text[:20]!r} is not an octal mode up to {MODE_MAX:04o}")
    return int(text, 8)


def flag(text: str) -> bool:
    """Returns whether the text says yes. Raises: InvalidInput."""
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0", ""):
        return False
    raise InvalidInput("must be true or false")


def pin_s(text: str) -> int | None:
    """Returns the seconds for which data is to be kept; WHOLE_LIFE; None: not at all. Raises:
    InvalidInput."""
    if text.lower() in ("true", "1"):
        return WHOLE_LIFE
    if text.lower() in ("false", "0"):
        return None
    found_s = parse_duration(text)
    if found_s > PIN_S_MAX:
        raise InvalidInput(f"{text!r} is too long: the limit is {PIN_S_MAX // 86400}d")
    return found_s


def policy(text: str) -> str:
    """Returns ``text`` if it is a policy for changes. Raises: InvalidInput."""
    if text not in (ON_LAST, NEVER, DISCARD):
        raise InvalidInput(
            f"with write=true it says what becomes of changes: {ON_LAST}, {NEVER} or {DISCARD}, "
            f"not {text[:60]!r}; branch=NAME names the branch"
        )
    return text
