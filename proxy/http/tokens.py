"""Bearer tokens: who may read, and write to, which repositories over TCP.

The file is JSON, version 1: each token's name, BLAKE3 digest, patterns of repositories and time.
Tokens are 32 random bytes, so a plain digest of one says nothing about it. The token itself is
shown once, when it is made, and stored nowhere.
"""

from __future__ import annotations

import binascii
import fcntl
import os
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import AlreadyExists, Corrupt, InvalidInput, NotFound, UnknownFormat
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import check_ref_name, digest_of
from lodefs.chunkstore.system.private_file import check_private, replace_private
from lodefs.chunkstore.system.watched_files import Stamp, stamp_of
from lodefs.proxy.s3.signature import AccessKey

VERSION = 1
TOKENS_MAX = 10_000
OTHER_S3 = "s3://"  # prefix of patterns for buckets of another S3
TOKEN_PREFIX = "lodefs_"  # so that scanners for leaked secrets recognize one
_TOKEN_BYTES = 32


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """One token. ``patterns`` are shell patterns of repository names; '*' also matches '/'.
    Patterns with s3:// are for buckets of another S3, and match no repository. ``s3_salt`` is used
    to make its S3 secret; "" if it has none. It may also write to the repositories among them that
    one of ``write_patterns`` matches."""

    name: str
    digest: str
    patterns: list[str]
    created_s: int
    s3_salt: str = ""
    write_patterns: list[str] = []

    def allows(self, repo: str) -> bool:
        return any(fnmatchcase(repo, pattern) for pattern in self.patterns)

    def allows_writing(self, repo: str) -> bool:
        """Whether this token may also write to a repository."""
        written = any(fnmatchcase(repo, pattern) for pattern in self.write_patterns)
        return written and self.allows(repo)

    @property
    def sees_all(self) -> bool:
        """Whether it covers every repository."""
        return "*" in self.patterns

    def forwards(self, bucket: str) -> bool:
        """Whether this token may read a bucket of another S3. No pattern of repositories allows
        that, not even '*'."""
        url = f"{OTHER_S3}{bucket}"
        return any(
            fnmatchcase(url, pattern) for pattern in self.patterns if pattern.startswith(OTHER_S3)
        )


class _Document(msgspec.Struct, frozen=True):
    version: int
    tokens: list[Token]


class Verdict(Enum):
    """The result of checking a token."""

    ALLOWED = "allowed"
    UNKNOWN = "unknown"  # missing, malformed, deleted or never made
    FORBIDDEN = "forbidden"  # known, but not for this repository


def list_tokens(path: Path) -> list[Token]:
    """Returns all tokens of a file; none if there is no file. Raises: Corrupt, UnknownFormat;
    InvalidInput if it cannot be read."""
    return _tokens_in(path, _bytes_of(path))


def file_digest(path: Path) -> str:
    """Returns a digest of the tokens file; "" if there is none. Raises: InvalidInput if it cannot
    be read."""
    return _digest_of_file(_bytes_of(path))


def _digest_of_file(data: bytes | None) -> str:
    return "" if data is None else digest_of(data).hex()


def _bytes_of(path: Path) -> bytes | None:
    """Returns the content of a file; None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"tokens file {path}: {error.strerror}") from error


def _tokens_in(path: Path, data: bytes | None) -> list[Token]:
    if data is None:
        return []
    try:
        found = from_json(data, _Document)
    except InvalidInput as error:
        raise Corrupt(f"tokens file {path} is damaged: {error}") from error
    if found.version != VERSION:
        raise UnknownFormat(
            f"tokens file {path} is of version {found.version}; this lodefs knows {VERSION}"
        )
    return found.tokens


class NewToken(NamedTuple):
    """A new token. This is the only time that it is shown, and its S3 secret ("" if it has none);
    its S3 access key is its name."""

    text: str
    s3_secret: str


def create_token(
    path: Path, name: str, patterns: Sequence[str], *, now_s: int, write: Sequence[str] = ()
) -> str:
    """Adds a token to the file and returns it: this is the only time that it is shown. It may also
    write to those of its repositories that the patterns ``write`` match.

    Raises: AlreadyExists for a name in use; InvalidInput for a malformed name or no patterns.
    """
    return _create(path, name, patterns, now_s, s3=False, write=write).text


def create_s3_token(
    path: Path, name: str, patterns: Sequence[str], *, now_s: int, write: Sequence[str] = ()
) -> NewToken:
    """Does the same for a token that can also sign S3 requests."""
    return _create(path, name, patterns, now_s, s3=True, write=write)


def _create(
    path: Path,
    name: str,
    patterns: Sequence[str],
    now_s: int,
    *,
    s3: bool,
    write: Sequence[str],
) -> NewToken:
    try:
        check_ref_name(name)
    except InvalidInput as error:
        raise InvalidInput(f"a token's name follows the rules of branch names: {error}") from error
    if not patterns or not all(patterns):
        raise InvalidInput("a token needs at least one pattern of repository names, such as '*'")
    text = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    with _locked(path):
        tokens = list_tokens(path)
        if any(token.name == name for token in tokens):
            raise AlreadyExists(f"there is a token named {name!r}: delete it first")
        if len(tokens) >= TOKENS_MAX:
            raise InvalidInput(f"tokens file {path} has {TOKENS_MAX} tokens already: delete some")
        salt = new_salt() if s3 else ""
        secret = secret_of(make_key(path), name, salt) if s3 else ""
        made = Token(name, _digest(text), list(patterns), now_s, salt, list(write))
        _write(path, [*tokens, made])
    return NewToken(text, secret)


def delete_token(path: Path, name: str) -> None:
    """Removes a token. Running proxies that can read the file notice within a second. Raises:
    NotFound."""
    with _locked(path):
        tokens = list_tokens(path)
        kept = [token for token in tokens if token.name != name]
        if len(kept) == len(tokens):
            raise NotFound(f"there is no token named {name!r} in {path}")
        _write(path, kept)


class TokensTaken(msgspec.Struct, frozen=True):
    """A proxy's state of a tokens file: its ``file_digest`` when it was last read, and why it could
    not be read since, or ""."""

    file: str
    digest: str
    problem: str


class TokenBook:
    """The tokens of a file, as a running proxy knows them."""

    def __init__(self, path: Path, *, s3: bool = False) -> None:
        """Reads the file, and with ``s3`` the key beside it. Raises: Corrupt, UnknownFormat,
        InvalidInput."""
        self.path = path
        self._s3 = s3
        self.problem = ""  # why the present file could not be read
        self._seen = self._stamps()
        data = _bytes_of(path)
        self._tokens = _Known(_tokens_in(path, data), _digest_of_file(data))
        self._read_s3_key()

    @property
    def taken(self) -> TokensTaken:
        """Returns whose tokens these are."""
        return TokensTaken(str(self.path.absolute()), self._tokens.digest, self.problem)

    def reload(self) -> bool:
        """Reads the file again if it changed. Returns whether it did.

        Raises what list_tokens raises, and then keeps the known tokens: until the file changes if
        its bytes are wrong, otherwise until it can be read. Raises: InvalidInput also if the S3 key
        is unusable; then the tokens are the new ones, and no signature is valid. ``problem``
        describes it until a later call succeeds.
        """
        try:
            changed = self._reload()
        except Exception as error:
            self.problem = str(error)
            raise
        if changed:
            self.problem = ""
        return changed

    def _reload(self) -> bool:
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        data = _bytes_of(self.path)
        try:
            tokens = _tokens_in(self.path, data)
        except (Corrupt, UnknownFormat):
            self._seen = stamps
            raise
        self._tokens = _Known(tokens, _digest_of_file(data))
        try:
            self._read_s3_key()
        except InvalidInput:
            self._seen = stamps
            raise
        self._seen = stamps
        return True

    def _read_s3_key(self) -> None:
        if self._s3:
            self._tokens.access_keys = access_keys_of(self.path, self._tokens.by_digest.values())

    def _stamps(self) -> list[Stamp | None]:
        return [stamp_of(path) for path in (self.path, key_path(self.path))]

    def check(self, token: str, repo: str | None) -> Verdict:
        """Returns the verdict for a token, and for a repository if the request names one."""
        # The time of the lookup may reveal something about digests, but nothing about the tokens.
        # Comparing each of 10,000 tokens would let strangers keep the event loop busy.
        found = self._tokens.by_digest.get(_digest(token))
        if found is None:
            return Verdict.UNKNOWN
        if repo is not None and not found.allows(repo):
            return Verdict.FORBIDDEN
        return Verdict.ALLOWED

    def may_write(self, token: str, repo: str) -> bool:
        """Whether a token may write to a repository."""
        found = self._tokens.by_digest.get(_digest(token))
        return found is not None and found.allows_writing(repo)

    def sees_all(self, token: str) -> bool:
        """Whether a token covers every repository."""
        found = self._tokens.by_digest.get(_digest(token))
        return found is not None and found.sees_all

    def name_of(self, token: str) -> str:
        """Returns the name of a token; "" if it is unknown."""
        found = self._tokens.by_digest.get(_digest(token))
        return "" if found is None else found.name

    def access_key(self, name: str) -> AccessKey | None:
        """Returns the S3 key of the token with a name; None if it has none."""
        return self._tokens.access_keys.get(name)


class _Known:
    """The current content of a tokens file."""

    def __init__(self, tokens: Iterable[Token], digest: str) -> None:
        self.digest = digest
        self.by_digest = {token.digest: token for token in tokens}
        self.access_keys: dict[str, AccessKey] = {}


def access_keys_of(path: Path, tokens: Iterable[Token]) -> dict[str, AccessKey]:
    """Returns the S3 keys of a file's tokens, by name. Raises: InvalidInput."""
    signing = [token for token in tokens if token.s3_salt]
    if not signing:
        return {}
    key = read_key(path)
    return {
        token.name: AccessKey(
            token.name,
            secret_of(key, token.name, token.s3_salt),
            token.allows,
            token.forwards,
            token.sees_all,
        )
        for token in signing
    }


def bearer_of(authorization: str | None) -> str | None:
    """Returns the token of an Authorization header; None for another scheme or none (RFC 6750,
    2.1)."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def password_of(authorization: str | None) -> str | None:
    """Returns the password of an Authorization header; None for another scheme or none (RFC 7617).
    The user's name does not count."""
    scheme, _, pair = (authorization or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(pair).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _digest(text: str) -> str:
    return digest_of(text.encode("utf-8", "surrogatepass")).hex()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps others from changing the file for a block."""
    lock = path.with_name(path.name + ".lock")
    try:
        fd = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(f"tokens file {path} cannot be changed: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, tokens: list[Token]) -> None:
    """Replaces the file in one step, readable for the same users."""
    data = msgspec.json.format(msgspec.json.encode(_Document(VERSION, tokens))) + b"\n"
    try:
        replace_private(path, data)
    except OSError as error:
        raise InvalidInput(f"tokens file {path} cannot be written: {error.strerror}") from error


KEY_BYTES = 32
SALT_BYTES = 16
_SUFFIX = ".s3-key"


def key_path(tokens: Path) -> Path:
    return tokens.with_name(tokens.name + _SUFFIX)


def new_salt() -> str:
    """Returns a salt, so that a token that is created again gets another secret."""
    return secrets.token_hex(SALT_BYTES)


def secret_of(key: bytes, name: str, salt: str) -> str:
    """Returns the secret of a token: 43 characters."""
    made = blake3(f"{name}\0{salt}".encode(), key=key).digest()
    return urlsafe_b64encode(made).decode().rstrip("=")


def read_key(tokens: Path) -> bytes:
    """Returns the key. Raises: InvalidInput if it is missing, readable for others, or damaged."""
    path = key_path(tokens)
    what = f"the S3 key {path}"
    check_private(path, what)
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except OSError as error:
        raise InvalidInput(f"{what}: {error.strerror}") from error
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidInput(
            f"{what} is damaged: restore it, or remove it and create the --s3 tokens again"
        )
    return key


def make_key(tokens: Path) -> bytes:
    """Returns the key, and makes it if there is none, readable for the users of the tokens file.
    The caller holds its lock."""
    path = key_path(tokens)
    if not path.exists():
        try:
            replace_private(path, f"{secrets.token_hex(KEY_BYTES)}\n".encode(), like=tokens)
        except OSError as error:
            raise InvalidInput(f"the S3 key {path} cannot be written: {error.strerror}") from error
    return read_key(tokens)
