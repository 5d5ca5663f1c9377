"""Rules and queries for a run of minutes: the same, with shorter times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

RATE_S = 15
WINDOWS = {"2m": "10s", "5m": f"{RATE_S}s", "10m": "20s", "15m": "20s", "30m": "60s"}
FOR = "2s"
VARIABLES = {"job": ".*", "instance": ".*", "repository": ".*", "mountpoint": ".*"}


def rules(text: str) -> str:
    """The text of a file of rules, whose windows are seconds long."""
    text = re.sub(r"\[(\d+m)\]", lambda found: f"[{WINDOWS[found[1]]}]", text)
    text = re.sub(r"^(\s+for: )\S+$", rf"\g<1>{FOR}", text, flags=re.MULTILINE)
    return re.sub(r"^(\s+interval: )\S+$", r"\g<1>1s", text, flags=re.MULTILINE)


def query(expression: str, range_s: float) -> str:
    """A panel's query with its variables filled in: everything, over the whole run."""
    filled = expression.replace("$__rate_interval", f"{RATE_S}s")
    filled = filled.replace("$__range", f"{range_s:.0f}s").replace("[1h]", "[60s]")
    for name, value in VARIABLES.items():
        filled = filled.replace(f"${name}", value)
    return filled


def config(folder: Path, targets: Mapping[str, str], written: Mapping[str, str]) -> str:
    """prometheus.yml for ``targets`` (HOST:PORT by scheme and name); the rules of ``written`` are
    put into ``folder``."""
    names = []
    for name, text in written.items():
        path = folder / name
        path.write_text(rules(text))
        names.append(f'"{path}"')
    lines = [
        "global: {scrape_interval: 1s, evaluation_interval: 1s, scrape_timeout: 1s}",
        f"rule_files: [{', '.join(names)}]",
        "scrape_configs:",
    ]
    for name, target in targets.items():
        scheme, _, address = target.partition("://")
        lines += [
            f"  - job_name: {name}",
            f"    scheme: {scheme}",
            "    tls_config: {insecure_skip_verify: true}",
            "    static_configs:",
            f'      - targets: ["{address}"]',
            "        labels: {job: lodefs}",
        ]
    return "\n".join(lines) + "\n"
