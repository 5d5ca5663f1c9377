"""``./run loadtest dashboards``: every panel has data, every alert fires for its cause alone.

A real Prometheus scrapes three nodes, first while all is well, then while each alert's cause is
brought about. Then every query of every panel is asked over the whole time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grafana.boards import BOARDS
from grafana.panels import Look, Panel
from loadtests.cluster.__main__ import scratch
from loadtests.cluster.origin import SERVERS
from loadtests.dashboards import figures, shortened
from loadtests.dashboards.causes import CAUSES
from loadtests.dashboards.watched import Watched, wait_until, watched
from loadtests.errors import LoadtestError
from loadtests.services.prometheus import Prometheus
from tests.support.chunkstore.child_process import ChildError

HEALTHY_S = 45.0
FIRES_WITHIN_S = 120.0
STEP_S = 2.0


@dataclass(slots=True)
class Outcome:
    """The findings of the run."""

    panels: int = 0
    panels_without_data: list[str] = field(default_factory=list)
    alerts_fired: list[str] = field(default_factory=list)
    alerts_missing: list[str] = field(default_factory=list)
    alerts_without_cause: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all targets are reached."""
        return not (self.panels_without_data or self.alerts_missing or self.alerts_without_cause)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if nothing is missing, 1 if something is, or nothing could be run."""
    parser = argparse.ArgumentParser(prog="./run loadtest dashboards", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--origin", choices=sorted(SERVERS), default="rgw", help="the S3 server")
    parser.add_argument(
        "--figures",
        type=Path,
        help="the file for what the panels show",
    )
    parser.add_argument("--dir", type=Path, help="where caches and data go")
    options = parser.parse_args(arguments)
    try:
        with scratch(options.dir, keep=False) as folder, watched(folder, options.origin) as cluster:
            begin_s = time.time()
            outcome = play(cluster)
            if options.figures is not None:
                figures.write(
                    options.figures, figures.taken(cluster.prometheus, begin_s, time.time())
                )
    except (LoadtestError, ChildError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    told = {**asdict(outcome), "ok": outcome.ok}
    if options.json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"  {name:22} {', '.join(value) if isinstance(value, list) else value}")
    return 0 if outcome.ok else 1


def play(cluster: Watched) -> Outcome:
    """Runs everything."""
    outcome, begin_s = Outcome(), time.time()
    server = cluster.prometheus
    _be_healthy(cluster)
    fired = server.query('count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[10m]))')
    outcome.alerts_without_cause = sorted(one["metric"]["alertname"] for one in fired)
    for cause, names in CAUSES:
        with cause(cluster):
            for name in names:
                _say(f"waiting for {name}")
                seen = wait_until(lambda name=name: name in server.firing(), FIRES_WITHIN_S)
                (outcome.alerts_fired if seen else outcome.alerts_missing).append(name)
    for board in BOARDS:
        for panel in board.panels:
            outcome.panels += 1
            if not _has_data(server, panel, begin_s):
                outcome.panels_without_data.append(f"{board.title}: {panel.title}")
    return outcome


def _be_healthy(cluster: Watched) -> None:
    """Mounts read what they should, again and again, small files and large ones."""
    _say("all is well")
    readers = [cluster.read(number, ["small"], forever=True) for number in (0, 1, 2)]
    readers += [cluster.read(number, ["warm"], forever=True) for number in (0, 1)]
    time.sleep(HEALTHY_S)
    for reader in readers:
        reader.kill()


def _has_data(server: Prometheus, panel: Panel, begin_s: float) -> bool:
    """Whether each query of a panel returned something at any time of the run."""
    end_s = time.time()
    for query in panel.queries:
        asked = shortened.query(query.expression, end_s - begin_s)
        if panel.look in (Look.FIGURE, Look.TABLE) and server.query(asked):
            continue
        if not server.query_range(asked, begin_s, end_s, STEP_S):
            _say(f"nothing: {asked}")
            return False
    return True


def _say(text: str) -> None:
    print(f"loadtest: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
