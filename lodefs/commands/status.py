"""``lodefs status``."""

from __future__ import annotations

from collections.abc import Mapping

from lodefs.chunkstore.errors import Unavailable
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import UntouchedPath
from lodefs.commands.mounts import mount_listings
from lodefs.settings.session import Session

NODES_SHOWN_MAX = 16


@cli.command(
    "lodefs status",
    "lodefs status --json | jq .node.store",
    "lodefs status ./work                   # what is changed in a writable mount",
    store=True,
    proxy=True,
)
def status(
    session: Session,
    directory: str | None = cli.argument("[DIR]", type=UntouchedPath()),
    as_json: bool = cli.JSON,
) -> None:
    """Show the proxy: store, cache used and limit, hit rates; the cluster that it is in; and the
    mounts of this machine, with those that have lost their proxy. With DIR, show the changes in the
    writable mount there, which a commit would take."""
    if directory is not None:
        from lodefs.commands.writable import show_status

        show_status(session, directory, as_json=as_json)
        return
    from lodefs.proxies.own_proxy import ask, running_proxy

    url: str | None = None
    answer: Mapping[str, object] = {}
    failure = None
    try:
        url = running_proxy(session)
        answer = ask(url, "/status", session.environment.get("LODEFS_TOKEN"))
    except Unavailable as error:
        failure = error  # the mounts are shown all the same: they may have lost this very proxy
    mounts = mount_listings(session)
    if as_json:
        cli.write_json({"proxy": url, **answer, "mounts": [one.as_json() for one in mounts]})
    else:
        if failure is None:
            for name, value in [("proxy", str(url)), *figures(answer), *cluster(answer)]:
                cli.write_line(f"{name:<9} {text.escaped(value)}")
        if mounts:
            what = text.count(len(mounts), "mount")
            cli.write_line(f"mounts    {what} on this machine, of all users and proxies")
        for one in mounts:
            cli.write_line(f"mount     {one.line(session)}")
    if failure is not None:
        raise failure


def figures(answer: Mapping[str, object]) -> list[tuple[str, str]]:
    """Returns the figures of /status that people want to see. Missing ones are left out."""
    known = _node_of(answer)
    found = [(name, str(known[name])) for name in ("store", "cache") if name in known]
    if known.get("store_replaced") is True:
        found.append(
            ("mirror", "the store does not answer, or refuses this node: a mirror stands in")
        )
    found.insert(0, ("version", str(answer.get("version", "unknown"))))
    used, limit = known.get("cache_used_bytes"), known.get("cache_size_bytes_max")
    if isinstance(used, int) and isinstance(limit, int) and limit:
        share = 100 * used / limit
        found.append(("used", f"{text.size(used)} of {text.size(limit)} ({share:.1f} %)"))
    pinned = known.get("pinned_bytes")
    if isinstance(pinned, int) and pinned:
        found.append(("pinned", text.size(pinned)))
    found += [*_recovery(known), *_scrub(known)]
    hits, misses = known.get("hits_reads"), known.get("misses_reads")
    if isinstance(hits, int) and isinstance(misses, int):
        rate = f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "no reads yet"
        found.append(("hits", f"{rate} ({hits:,} hits, {misses:,} misses)"))
    fetched, of_peers = known.get("store_fetched_bytes"), known.get("peer_fetched_bytes")
    if isinstance(fetched, int):
        also = ""
        if "peers" in known and isinstance(of_peers, int):
            also = f", {text.size(of_peers)} from other nodes"
        found.append(("fetched", f"{text.size(fetched)} from the store{also}"))
    bad = sum(n for name, n in known.items() if "corrupt" in name and isinstance(n, int))
    if bad:
        found.append(("corrupt", f"{bad:,} chunks or files with wrong bytes were refused"))
    return found


def _recovery(known: Mapping[str, object]) -> list[tuple[str, str]]:
    """Returns the progress of the check after a power cut, until it is done."""
    total, done = known.get("recovery_bytes"), known.get("recovery_bytes_done")
    if not isinstance(total, int) or not isinstance(done, int) or done >= total:
        return []
    return [("recovery", f"{text.size(done)} of {text.size(total)} checked after a power cut")]


def _scrub(known: Mapping[str, object]) -> list[tuple[str, str]]:
    """Returns the share of the cache that was checked lately, the oldest check, and the rate."""
    names = ("scrub_fresh_bytes", "scrub_old_bytes", "scrub_never_bytes", "scrub_days")
    fresh, old, never, days = (known.get(name) for name in names)
    if not (isinstance(fresh, int) and isinstance(old, int) and isinstance(never, int)):
        return []
    if not fresh + old + never:
        return []
    parts = [f"{100 * fresh / (fresh + old + never):.1f} % checked or written within {days} days"]
    age_s = known.get("scrub_oldest_check_age_s")
    if isinstance(age_s, int):
        parts.append(f"oldest check {age_s / 86400:.1f} days ago")
    if never:
        parts.append(f"{text.size(never)} never")
    rate = known.get("scrub_bytes_per_s")
    if not known.get("scrub_bytes_per_s_max"):
        parts.append("off")
    elif isinstance(rate, int):
        parts.append(f"{text.size(rate)}/s now")
    return [("scrub", ", ".join(parts))]


def cluster(answer: Mapping[str, object]) -> list[tuple[str, str]]:
    """Returns the cluster's nodes in /status: how many there are and how many are well, then each
    of them; if there are many, only those that are not well. Nothing without a cluster."""
    peers = _node_of(answer).get("peers")
    nodes = [one for one in peers if isinstance(one, dict)] if isinstance(peers, list) else []
    if not nodes:
        return []
    own = [str(one.get("address")) for one in nodes if one.get("self")]
    bad = [one for one in nodes if not _is_well(one)]
    well = "all well" if not bad else f"{len(nodes) - len(bad):,} well"
    place = f"this node is {own[0]}" if own else "this node is none of them"
    found = [("cluster", f"{text.count(len(nodes), 'node')}, {well}; {place}")]
    listed = nodes if len(nodes) <= NODES_SHOWN_MAX else bad
    found += [("node", _node_line(one)) for one in listed[:NODES_SHOWN_MAX]]
    if len(listed) > NODES_SHOWN_MAX:
        found.append(("node", f"… and {len(listed) - NODES_SHOWN_MAX:,} more that are not well"))
    return found


def _is_well(node: Mapping[str, object]) -> bool:
    return bool(node.get("self")) or node.get("state") == "well"


def _node_line(node: Mapping[str, object]) -> str:
    state = "this node" if node.get("self") else node.get("state", "unknown")
    weight = node.get("weight", 1)
    shown = f"  weight {weight:g}" if isinstance(weight, int | float) and weight != 1 else ""
    return f"{node.get('address')}  {state}{_reason(node)}{shown}{_traffic(node)}"


def _reason(node: Mapping[str, object]) -> str:
    """Returns the reason why a node is not well, or the last error of one that is well again."""
    if not _is_well(node):
        return f" ({node['reason']})" if node.get("reason") else ""
    ago_s = node.get("error_ago_s")
    if not node.get("error") or not isinstance(ago_s, int | float):
        return ""
    return f" (last error {ago_s:,.0f} s ago: {node.get('error')})"


def _traffic(node: Mapping[str, object]) -> str:
    """Returns the time when a node was seen, its speed, and the amounts received and sent."""
    if node.get("self") or "seen_ago_s" not in node:
        return ""
    seen_s, latency_s = node.get("seen_ago_s"), node.get("latency_s")
    parts = ["never seen"]
    if isinstance(seen_s, int | float):
        parts = [f"seen {seen_s:,.0f} s ago"]
        if isinstance(latency_s, int | float):
            parts.append(f"{latency_s * 1000:.0f} ms")
    for name, what in (("received_bytes", "from it"), ("sent_bytes", "to it")):
        size_bytes = node.get(name)
        if isinstance(size_bytes, int):
            parts.append(f"{text.size(size_bytes)} {what}")
    return f"  {', '.join(parts)}"


def _node_of(answer: Mapping[str, object]) -> Mapping[str, object]:
    node = answer.get("node")
    return node if isinstance(node, dict) else {}
