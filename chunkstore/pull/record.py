"""What a finished copy says that it is: an extended attribute of its directory.

It moves with the directory and is in no commit. It is a hint: whatever an update replaces is
compared with what the record says was there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import CommitId, parse_id

NAME = "user.lodefs.pulled"

Identity = dict[str, str]  # store, repo, commit and path (hex), as in the state of a pull


def write_record(target: Path, identity: Identity) -> None:
    """Remembers what a directory is a copy of, if its file system can."""
    with suppress(OSError):
        os.setxattr(target, NAME, json.dumps(identity, sort_keys=True).encode())


def recorded_commit(target: Path, identity: Identity) -> CommitId | None:
    """The commit that a directory is a copy of; None if that is not known, or it is one of another
    repository or path than ``identity``."""
    try:
        found = from_json(os.getxattr(target, NAME), Identity)
        commit = parse_id(found["commit"])
    except (OSError, InvalidInput, KeyError):
        return None
    same = all(found.get(key) == identity[key] for key in ("store", "repo", "path"))
    return CommitId(commit) if same else None
