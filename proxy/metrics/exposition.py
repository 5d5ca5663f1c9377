"""Metric families, and their text for Prometheus: its own format, and OpenMetrics 1.0.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/. A node with a hundred mounts has ten
thousand lines, which are written here with one ``join`` for each family.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from lodefs.proxy.metrics.bounded_labels import OTHER

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_MEDIA = "application/openmetrics-text"
LABEL_CHARS_MAX = 256
NAMING_LABELS = ("repository", "mountpoint", "commit", "job", "user", "store")
"""Labels whose values are not fixed: they may name things that not everybody may know."""

K = TypeVar("K", bound=tuple[str, ...])

_REPOSITORY = re.compile(rb'[{,]repository="((?:[^"\\]|\\.)*)"')
_MOUNTPOINT = re.compile(rb'[{,]mountpoint="((?:[^"\\]|\\.)*)"')
_NAMING = re.compile(rb'[{,](?:%s)="' % "|".join(NAMING_LABELS).encode())
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Definition(NamedTuple):
    """The definition of a metric. ``name`` is as shown, a counter's with ``_total``. ``kind`` is
    "counter", "gauge", "histogram" or "summary"."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class Exemplar(NamedTuple):
    """One request in a bucket: its trace, its value, and its Unix time."""

    trace_id: str
    value: float
    time_s: float


class MetricLine(NamedTuple):
    """One line of a family: the suffix of its name, its labels as text, its value."""

    ending: str
    labels: str
    value: float
    exemplar: Exemplar | None = None


class Family(NamedTuple):
    """All samples of one metric."""

    definition: Definition
    samples: list[MetricLine]


def label_text(names: Iterable[str], values: Iterable[str]) -> str:
    """Returns labels as in a line, without braces. Names that are not valid UTF-8 are escaped, and
    very long values cut."""
    return ",".join(
        f'{name}="{label_value(value).translate(_ESCAPES)}"'
        for name, value in zip(names, values, strict=True)
    )


def label_value(value: str) -> str:
    """Returns a value that every reader of the text can decode, of at most LABEL_CHARS_MAX
    characters."""
    clean = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if len(clean) > LABEL_CHARS_MAX:
        return f"{clean[: LABEL_CHARS_MAX - 1]}…"
    return clean


def simple(definition: Definition, value: float) -> Family:
    """Returns a family without labels."""
    return Family(definition, [MetricLine("", "", value)])


def labelled(definition: Definition, values: Mapping[K, float]) -> Family:
    """Returns a family with a sample for each tuple of label values."""
    names = definition.labels
    samples = [MetricLine("", label_text(names, key), value) for key, value in values.items()]
    return Family(definition, samples)


def readable(body: bytes, may_read: Callable[[str], bool]) -> bytes:
    """Filters a text in either format for a reader who may not read everything. Of samples with
    naming labels, only those of readable repositories and of their mounts remain. Samples about
    users, jobs and places may concern any repository."""
    lines = body.split(b"\n")  # not splitlines, since a label may have a carriage return
    found = {match[1] for line in lines if (match := _REPOSITORY.search(line))}
    shown = {repo for repo in found if repo != OTHER.encode() and may_read(repo.decode())}
    mounts = {
        match[1]
        for line in lines
        if _label(_REPOSITORY, line) in shown and (match := _MOUNTPOINT.search(line))
    }

    def is_shown(line: bytes) -> bool:
        repo, mountpoint = _label(_REPOSITORY, line), _label(_MOUNTPOINT, line)
        if repo is not None:
            return repo in shown
        return mountpoint in mounts if mountpoint is not None else not _NAMING.search(line)

    return b"\n".join(line for line in lines if is_shown(line))


def _label(pattern: re.Pattern[bytes], line: bytes) -> bytes | None:
    """Returns the encoded value of a label in a line."""
    found = pattern.search(line)
    return None if found is None else found[1]


def text(families: Iterable[Family]) -> bytes:
    """Returns all families in Prometheus' text format."""
    return "".join(_lines(family, openmetrics=False) for family in families).encode()


def openmetrics(families: Iterable[Family]) -> bytes:
    """Returns all families as OpenMetrics, with exemplars."""
    lines = [_lines(family, openmetrics=True) for family in families]
    return "".join([*lines, "# EOF\n"]).encode()


def wants_openmetrics(accept: str) -> bool:
    """Whether a client with this Accept header accepts OpenMetrics, and does not prefer plain
    text."""
    weights = {"openmetrics": 0.0, "text": 0.0}
    for part in accept.split(","):
        media, *parameters = (one.strip() for one in part.split(";"))
        weight = _weight(parameters)
        if media == OPENMETRICS_MEDIA:
            weights["openmetrics"] = max(weights["openmetrics"], weight)
        elif media == "text/plain":
            weights["text"] = max(weights["text"], weight)
    return weights["openmetrics"] > 0 and weights["openmetrics"] >= weights["text"]


def _weight(parameters: list[str]) -> float:
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _lines(family: Family, *, openmetrics: bool) -> str:
    definition = family.definition
    name = definition.name
    base = name.removesuffix("_total") if definition.kind == "counter" else name
    head = base if openmetrics else name
    kind = definition.kind
    lines = [f"# HELP {head} {definition.text.translate(_ESCAPES)}\n# TYPE {head} {kind}\n"]
    for ending, labels, value, exemplar in family.samples:
        tail = _exemplar(exemplar) if openmetrics and exemplar is not None else ""
        shown = repr(value) if value.__class__ is int else number(value)
        lines.append(
            f"{name}{ending}{{{labels}}} {shown}{tail}\n"
            if labels
            else f"{name}{ending} {shown}{tail}\n"
        )
    return "".join(lines)


def _exemplar(exemplar: Exemplar) -> str:
    labels = label_text(("trace_id",), (exemplar.trace_id,))
    return f" # {{{labels}}} {number(exemplar.value)} {exemplar.time_s:.3f}"


def number(value: float) -> str:
    """Returns a value in the notation of both formats."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return repr(float(value))
