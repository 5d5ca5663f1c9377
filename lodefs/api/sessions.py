"""The settings that a call of the API has: the program's session, or one for this call alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.settings.session import Session


@contextmanager
def opened(
    session: Session | None = None, *, store: str | None = None, proxy: str | None = None
) -> Iterator[Session]:
    """``session`` if there is one. Else one of the environment and the settings files, where
    ``store`` and ``proxy`` win, closed at the end of the block."""
    if session is not None:
        yield session
        return
    made = Session(dict(os.environ))
    made.apply_options(store=store, proxy=proxy)
    try:
        yield made
    finally:
        made.close()


def spec_of(spec: str | Spec) -> Spec:
    """``REPO[@REV][:PATH]``. Raises: InvalidInput."""
    return spec if isinstance(spec, Spec) else parse_spec(spec)


def revision_of(spec: str | Spec) -> Spec:
    """The same for what takes whole revisions. Raises: InvalidInput if there is a path."""
    found = spec_of(spec)
    if found.path:
        raise InvalidInput(f"{found}: this takes REPO[@REV], without a path")
    return found
