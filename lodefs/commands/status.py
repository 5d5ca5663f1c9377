"""``lodefs status``."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lodefs import text
from lodefs.commands.mount import json_of, line_of
from lodefs.options import json_option, session_command, write_json, write_line
from lodefs.session import Session


@click.command()
@json_option
@session_command
def status(session: Session, as_json: bool) -> None:
    """Show the proxy: store, cache used and limit, hit rates; and the mounts of this machine."""
    from lodefs.nodeproxy import ask, running_proxy
    from mount.mounter import list_mounts

    url = running_proxy(session)
    answer = ask(url, "/status", session.environment.get("LODEFS_TOKEN"))
    mounts = list_mounts()
    if as_json:
        write_json({"proxy": url, **answer, "mounts": [json_of(mounted) for mounted in mounts]})
        return
    for name, value in [("proxy", url), *figures(answer)]:
        write_line(f"{name:<9} {text.shown(value)}")
    for mounted in mounts:
        write_line(f"mount     {line_of(mounted)}")


def figures(answer: Mapping[str, object]) -> list[tuple[str, str]]:
    """What people want to know of /status. Figures that the proxy does not give are left out."""
    node = answer.get("node")
    known = node if isinstance(node, dict) else {}
    found = [(name, str(known[name])) for name in ("store", "cache") if name in known]
    found.insert(0, ("version", str(answer.get("version", "unknown"))))
    used, limit = known.get("cache_used_bytes"), known.get("cache_size_bytes_max")
    if isinstance(used, int) and isinstance(limit, int) and limit:
        share = 100 * used / limit
        found.append(("used", f"{text.size(used)} of {text.size(limit)} ({share:.1f} %)"))
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
