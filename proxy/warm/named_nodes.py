"""Which members of a cluster are meant by names of machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lodefs.chunkstore.errors import InvalidInput

SHOWN_MAX = 8


def named(names: Sequence[str], members: Sequence[str]) -> list[str]:
    """The members (``HOST:PORT``) that names mean, in the order of the members: each is a member's
    address, its host, or that host's name without its domain. Raises: InvalidInput for a name that
    means none."""
    known = {name: one for one in members for name in _names_of(one)}
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(members[:SHOWN_MAX]) + (", ..." if len(members) > SHOWN_MAX else "")
        raise InvalidInput(
            f"{unknown[0]} is no node of this proxy's cluster, which has {shown or 'none'}: nodes "
            "are named as in `[serve] peers`"
        )
    wanted = {known[name] for name in names}
    return [one for one in members if one in wanted]


def _names_of(address: str) -> list[str]:
    host = address.rpartition(":")[0].strip("[]")
    is_name = not host.replace(".", "").isdigit() and ":" not in host
    return [address, host, *([host.partition(".")[0]] if is_name else [])]
