"""``lodefs status``."""

from __future__ import annotations

from collections.abc import Mapping

import click

from chunkstore.errors import Unavailable
from lodefs import text
from lodefs.commands.mount import listed
from lodefs.options import json_option, session_command, write_json, write_line
from lodefs.session import Session

NODES_SHOWN_MAX = 16


@click.command()
@json_option
@session_command(store=True, proxy=True)
def status(session: Session, as_json: bool) -> None:
    """Show the proxy: store, cache used and limit, hit rates; the cluster that it is in; and the
    mounts of this machine, with those that have lost their proxy."""
    from lodefs.nodeproxy import ask, running_proxy

    url: str | None = None
    answer: Mapping[str, object] = {}
    failure = None
    try:
        url = running_proxy(session)
        answer = ask(url, "/status", session.environment.get("LODEFS_TOKEN"))
    except Unavailable as error:
        failure = error  # the mounts are shown all the same: they may have lost this very proxy
    mounts = listed()
    if as_json:
        write_json({"proxy": url, **answer, "mounts": [one.as_json() for one in mounts]})
    else:
        if failure is None:
            for name, value in [("proxy", str(url)), *figures(answer), *cluster(answer)]:
                write_line(f"{name:<9} {text.shown(value)}")
        for one in mounts:
            write_line(f"mount     {one.line(session)}")
    if failure is not None:
        raise failure


def figures(answer: Mapping[str, object]) -> list[tuple[str, str]]:
    """What people want to know of /status. Figures that the proxy does not give are left out."""
    known = _node_of(answer)
    found = [(name, str(known[name])) for name in ("store", "cache") if name in known]
    found.insert(0, ("version", str(answer.get("version", "unknown"))))
    used, limit = known.get("cache_used_bytes"), known.get("cache_size_bytes_max")
    if isinstance(used, int) and isinstance(limit, int) and limit:
        share = 100 * used / limit
        found.append(("used", f"{text.size(used)} of {text.size(limit)} ({share:.1f} %)"))
    pinned = known.get("pinned_bytes")
    if isinstance(pinned, int) and pinned:
        found.append(("pinned", text.size(pinned)))
    hits, misses = known.get("hits_reads"), known.get("misses_reads")
    if isinstance(hits, int) and isinstance(misses, int):
        rate = f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "no reads yet"
        found.append(("hits", f"{rate} ({hits:,} hits, {misses:,} misses)"))
    fetched = known.get("store_fetched_bytes")
    if isinstance(fetched, int):
        found.append(("fetched", f"{text.size(fetched)} from the store"))
    bad = sum(n for name, n in known.items() if "corrupt" in name and isinstance(n, int))
    if bad:
        found.append(("corrupt", f"{bad:,} chunks or files with wrong bytes were refused"))
    return found


def cluster(answer: Mapping[str, object]) -> list[tuple[str, str]]:
    """The cluster's nodes in /status: how many there are and can be used, and then each of them;
    of many only those that cannot be used. Nothing where there is no cluster."""
    peers = _node_of(answer).get("peers")
    nodes = [one for one in peers if isinstance(one, dict)] if isinstance(peers, list) else []
    if not nodes:
        return []
    own = [str(one.get("address")) for one in nodes if one.get("self")]
    bad = [one for one in nodes if not one.get("usable") and not one.get("self")]
    usable = "all usable" if not bad else f"{len(nodes) - len(bad):,} usable"
    place = f"this node is {own[0]}" if own else "this node is none of them"
    found = [("cluster", f"{text.count(len(nodes), 'node')}, {usable}; {place}")]
    told = nodes if len(nodes) <= NODES_SHOWN_MAX else bad
    found += [("node", _node_line(one)) for one in told[:NODES_SHOWN_MAX]]
    if len(told) > NODES_SHOWN_MAX:
        found.append(("node", f"… and {len(told) - NODES_SHOWN_MAX:,} more that are not usable"))
    return found


def _node_line(node: Mapping[str, object]) -> str:
    state = "this node" if node.get("self") else "usable" if node.get("usable") else "not usable"
    since_s = node.get("unusable_s")
    if state == "not usable" and isinstance(since_s, int | float):
        state += f" for {since_s:,.0f} s"
    weight = node.get("weight", 1)
    shown = f"  weight {weight:g}" if isinstance(weight, int | float) and weight != 1 else ""
    return f"{node.get('address')}  {state}{shown}"


def _node_of(answer: Mapping[str, object]) -> Mapping[str, object]:
    node = answer.get("node")
    return node if isinstance(node, dict) else {}
