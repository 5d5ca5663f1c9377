"""S3 keys of tokens: a secret that clients sign with, and that is stored nowhere.

Signatures can only be checked by one who can make them, so a digest as for tokens would not do. A
secret is derived instead: keyed BLAKE3 of the token's name and salt under the proxy's S3 key, 32
random bytes in a file beside the tokens file. Neither file says a secret without the other.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from pathlib import Path

from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.private_file import check_private, replace_private

KEY_BYTES = 32
SALT_BYTES = 16
_SUFFIX = ".s3-key"


def key_path(tokens: Path) -> Path:
    """Where the key lies that belongs to a tokens file."""
    return tokens.with_name(tokens.name + _SUFFIX)


def new_salt() -> str:
    """What makes the secret of a token that is made anew another one."""
    return secrets.token_hex(SALT_BYTES)


def secret_of(key: bytes, name: str, salt: str) -> str:
    """The secret of a token: 43 characters."""
    made = blake3(f"{name}\0{salt}".encode(), key=key).digest()
    return urlsafe_b64encode(made).decode().rstrip("=")


def read_key(tokens: Path) -> bytes:
    """The key. Raises: InvalidInput if it is missing, open to others, or damaged."""
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
            f"{what} is damaged: restore it, or remove it and make the tokens with --s3 anew"
        )
    return key


def make_key(tokens: Path) -> bytes:
    """The key, made now if there is none, for those who read the tokens file. The caller holds
    its lock."""
    path = key_path(tokens)
    if not path.exists():
        try:
            replace_private(path, f"{secrets.token_hex(KEY_BYTES)}\n".encode(), like=tokens)
        except OSError as error:
            raise InvalidInput(f"the S3 key {path} cannot be written: {error.strerror}") from error
    return read_key(tokens)
