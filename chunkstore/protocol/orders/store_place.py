"""The first line that a proxy sends to a process that writes into its store."""

from __future__ import annotations

import msgspec


class StorePlace(msgspec.Struct, frozen=True):
    """The store to write to, and the directory of the push index. A path in ``store`` is absolute,
    since the process has another current directory."""

    store: str
    endpoint_url: str | None
    region: str | None
    index_dir: str
