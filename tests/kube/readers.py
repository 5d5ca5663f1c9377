"""Pods that read and compare without end, while something happens to what serves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtests.kube.installation import inline, pod
from loadtests.kube.node import Node
from loadtests.services.containers import VERIFY

REPO = "vision/flickr30k"  # as in the examples
NAMES = ["reader-0", "reader-1"]
ROUNDS = 3


class Readers:
    """Pods that run VERIFY."""

    def __init__(self, node: Node, volume: Mapping[str, Any] | None = None, **spec: Any) -> None:
        """Returns when they read; ``spec``: what else their specifications have."""
        self.node = node
        script = f"echo 0 0 >/tmp/seen\n{VERIFY}"
        shown = volume or inline(REPO, commit="v1.0")
        node.apply(*(pod(name, shown, script, **spec) for name in NAMES))
        node.await_pods(NAMES, "Running")
        self.read_on()

    def seen(self) -> list[tuple[int, int]]:
        """Of each: rounds done, bad reads."""
        return [self._seen_by(name) for name in NAMES]

    def read_on(self) -> None:
        """Returns when each has read all files a few times more, and every byte was right."""
        before = [rounds for rounds, _ in self.seen()]

        def all_did() -> bool:
            now = self.seen()
            assert not any(bad for _, bad in now), now
            pairs = zip(now, before, strict=True)
            return all(rounds >= old + ROUNDS for (rounds, _), old in pairs)

        self.node.until(all_did, "readers read on", timeout_s=240.0)

    def _seen_by(self, name: str) -> tuple[int, int]:
        found: list[str] = []

        def told() -> bool:  # a kubelet that has just started does not know its pods yet
            done = self.node.try_kubectl("exec", name, "--", "cat", "/tmp/seen")
            found[:] = done.stdout.split()
            return done.returncode == 0

        self.node.until(told, f"{name} says what it has read")
        return (int(found[0]), int(found[1])) if found else (0, 0)
