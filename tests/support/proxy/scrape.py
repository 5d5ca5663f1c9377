"""What a scrape of /metrics holds, read by prometheus-client's parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]
PLAIN_LABELS: Labels = frozenset()


def labels_of(**values: str) -> Labels:
    """Labels as ``samples`` has them."""
    return frozenset(values.items())


def samples(text: bytes) -> Samples:
    """Values by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
