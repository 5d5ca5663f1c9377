"""Dashboards, rules and runbooks: against the metrics that there are, and against each other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana import render
from grafana.boards import BOARDS
from grafana.panels import Board, Look
from loadtests.services.prometheus import programs

ROOT = Path(__file__).parents[2]
RULES = ROOT / "grafana" / "rules"
METRIC = re.compile(r"\b(?:lodefs_\w+|process_\w+|\w+:lodefs_\w+:\w+)\b")
LABELS = {"job", "instance", "le", "source", "alertname", "alertstate"}  # and those of the page


def documented() -> dict[str, set[str]]:
    """The metrics of docs/metrics.md, with their labels."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    found: dict[str, set[str]] = {}
    for match in re.finditer(r"^- `(\w+)` \((\w+)([^)]*)\)", text, re.MULTILINE):
        name, kind, labels = match.groups()
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
        for suffix in suffixes.get(kind, ("",)):
            found[name + suffix] = set(re.findall(r"`(\w+)`", labels))
    for name in re.findall(r"`(process_\w+)`", text):
        found[name] = set()
    return found


def recorded() -> list[dict[str, Any]]:
    """The recording rules."""
    return _rules("recording.yaml")


def alerts() -> list[dict[str, Any]]:
    """The alerts."""
    return _rules("alerts.yaml")


def _rules(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((RULES / name).read_text())["groups"][0]["rules"])


def expressions() -> list[str]:
    """All queries: of panels, of variables, and of rules."""
    of_panels = [query.expression for board in BOARDS for panel in board.panels
                 for query in panel.queries]  # fmt: skip
    of_variables = [variable.metric for board in BOARDS for variable in board.variables]
    return of_panels + of_variables + [rule["expr"] for rule in recorded() + alerts()]


def test_the_json_is_what_the_code_says() -> None:
    """The files that Grafana loads are those of ``python -m grafana.render``."""
    made = render.files()
    there = {path: path.read_text() for path in render.DASHBOARDS.glob("*.json")}
    assert there == made


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board(board: Board) -> None:
    """Every panel says what it shows, in a unit, with named series; it has a place of its own; the
    board leads to the others and to the runbooks."""
    made = json.loads(render.render(board))
    assert made["uid"] == board.uid
    places: set[tuple[int, int]] = set()
    for panel in board.panels:
        assert len(panel.description) > 15, panel.title
        assert panel.unit, panel.title
        assert panel.queries, panel.title
        assert all(query.legend for query in panel.queries), panel.title
        assert (panel.look is Look.TABLE) == bool(panel.columns_shown), panel.title
    for panel in made["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells
    links = {link["url"] for link in made["links"]}
    assert {f"/d/{other.uid}" for other in BOARDS if other is not board} < links
    assert render.RUNBOOKS in links


def test_every_metric_is_documented() -> None:
    """Queries name metrics of docs/metrics.md, or recorded ones, with labels that these have."""
    known = documented()
    labels = set().union(*known.values()) | LABELS
    names = known.keys() | {rule["record"] for rule in recorded()}
    for expression in expressions():
        for name in METRIC.findall(expression):
            assert name in names, f"{name} in {expression}"
        for selectors in re.findall(r"\{([^}]*)\}", expression):
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors))
            assert asked <= labels, expression


def test_recorded_figures_are_asked_for() -> None:
    """No recording rule that no query uses."""
    asked = " ".join(expressions())
    assert [rule["record"] for rule in recorded() if rule["record"] not in asked] == []


def test_alerts_lead_to_runbooks() -> None:
    """Each alert has a severity, a summary, and a section in docs/runbooks.md; each section is of
    an alert."""
    text = (ROOT / "docs" / "runbooks.md").read_text()
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert sections == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert "$labels.instance" in alert["annotations"]["summary"]
        anchor = f"{render.RUNBOOKS}#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == anchor


def test_every_alert_is_tested() -> None:
    """rules/tests.yaml has each alert fire."""
    tests = yaml.safe_load((RULES / "tests.yaml").read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"]
             if one["exp_alerts"]}  # fmt: skip
    assert fired == {alert["alert"] for alert in alerts()}


@pytest.mark.slow
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yaml", "recording.yaml"),
                                   ("test", "rules", "tests.yaml")])  # fmt: skip
def test_rules(words: tuple[str, ...]) -> None:
    """Prometheus' own promtool accepts the rules, and their tests pass."""
    command = [str(programs() / "promtool"), *words]
    ended = subprocess.run(
        command, cwd=RULES, capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
