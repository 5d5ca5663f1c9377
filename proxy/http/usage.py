"""How much a proxy has been used: what tells whether anybody needs it."""

from __future__ import annotations

from typing import NamedTuple


class Use(NamedTuple):
    """What a proxy has done. ``busy``: a request is being answered, or a job runs."""

    answered: int  # requests so far
    busy: bool
