"""The repository that jobs change, and what becomes of their changes on the nodes."""

from __future__ import annotations

from contextlib import suppress

from loadtests.slurm import configs
from loadtests.slurm.cluster import LODEFS, Cluster
from tests.slurm.dataset import Dataset
from tests.support.chunkstore.child_process import ChildError

REPO = f"{configs.WRITTEN}/cats"
WRITER = "n1"
ALWAYS = ",commit=always"


class Changed:
    """The repository that jobs change."""

    def __init__(self, cluster: Cluster, dataset: Dataset) -> None:
        self._cluster = cluster
        self.directory = dataset.directory

    def option(self, more: str = "") -> str:
        return f"--lodefs={REPO}@main:{self.directory}:rw{more}"

    def submit(self, script: str, more: str = "", *words: str) -> int:
        place = ("-w", WRITER, "-n1", *words)
        return self._cluster.submit(script, self.option(more), *place)

    def messages(self, branch: str = "main") -> list[str]:
        """Of the commits that jobs have made, the last one first."""
        shown = ""
        with suppress(ChildError):  # there is no such branch yet
            shown = self._cluster.lodefs("log", f"{REPO}@{branch}", "--json")
        return [line for line in shown.splitlines() if "Slurm job" in line]

    def read(self, name: str, branch: str = "main") -> str:
        return self._cluster.lodefs("cat", f"{REPO}@{branch}:{name}")

    def await_commit(self, job: int, branch: str = "main") -> None:
        self._cluster.until(
            lambda: any(f'Slurm job {job}"' in one for one in self.messages(branch)), "its commit"
        )

    def kept(self, node: str = WRITER) -> list[str]:
        words = (LODEFS, "mounts", "--uncommitted")
        return self._cluster.output(*words, user="root", node=node).splitlines()

    def await_kept(self, job: int, node: str = WRITER) -> str:
        """Waits until nothing else will become of a job's changes; where `lodefs commit` finds
        them."""
        records = ("ls", configs.CHANGES / "slurm")
        self._cluster.until(
            lambda: not self._cluster.call(*records, user="root", node=node).stdout, "its settling"
        )
        (line,) = (one for one in self.kept(node) if f"/{job}-" in one)
        assert "not mounted" in line
        return line.split()[0]

    def discard(self, place: str, node: str = WRITER) -> None:
        self._cluster.output(LODEFS, "unmount", "--discard", place, user="root", node=node)
