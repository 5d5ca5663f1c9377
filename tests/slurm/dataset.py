"""A dataset that changes from push to push, and what jobs read of it."""

from __future__ import annotations

import os

from loadtests.slurm.cluster import Cluster

REPO = "team/cats"
BIG_BYTES = 3_000_001


class Dataset:
    """``version`` in it says which push made it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.folder = cluster.folder
        self._source = cluster.folder / "source"
        self._source.mkdir()
        (self._source / "big").write_bytes(os.urandom(BIG_BYTES))
        self.version = 0
        self.commit = ""
        self.directory = f"{cluster.folder}/jobs/cats"

    @property
    def branch(self) -> str:
        """What a job asks for."""
        return f"{REPO}@main:{self.directory}"

    @property
    def option(self) -> str:
        """The same as an option of sbatch, srun and salloc."""
        return f"--lodefs={self.branch}"

    @property
    def read(self) -> str:
        """A shell command that prints the version."""
        return f"cat {self.directory}/version"

    def replace(self) -> None:
        """Another commit, whose large file nobody has read."""
        (self._source / "big").write_bytes(os.urandom(BIG_BYTES))
        self.push()

    def push(self) -> None:
        """Another commit."""
        self.version += 1
        (self._source / "version").write_text(f"version {self.version}\n")
        self.commit = self.push_to(REPO)

    def push_to(self, repo: str) -> str:
        """The same files, as a commit of any repository, which it returns."""
        words = self._cluster.lodefs("push", self._source, repo).split()
        return words[words.index("commit") + 1]

    @property
    def text(self) -> str:
        """What ``read`` prints of the last commit."""
        return f"version {self.version}"
