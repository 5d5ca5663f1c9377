"""A push in parts as an array of a real Slurm, by the script and the commands of the docs."""

from __future__ import annotations

import re
from pathlib import Path

from loadtests.slurm.cluster import LODEFS, Cluster
from loadtests.slurm.configs import NODES
from tests.docs.pages import ROOT, block
from tests.support.chunkstore.directories import write_files

ARRAY = block("many-machines.md#as-an-array-of-slurm-1")
PLAN = "lodefs plan create crawl-7 ./crawl data/crawl"
DIRECTORIES, FILES = 13, 500  # of the source: parts of 2,000, of 4,000 and of 500 files
ARRAY_TIMEOUT_S = 300.0


class Pusher:
    """A user with a source and a store of their own, which all nodes see."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.folder = cluster.folder / "jobs" / "parts"
        self.folder.mkdir()
        self.folder.chmod(0o777)
        files = {f"crawl/{n % DIRECTORIES}/{n}": b"%d" % n for n in range(DIRECTORIES * FILES)}
        write_files(self.folder, files)
        self.script = self.folder / "array.sh"
        self.script.write_text(ARRAY)
        self.sh("lodefs init $LODEFS_STORE")

    def sh(self, script: str) -> str:
        """The output of a script on the submit host."""
        place = f"cd {self.folder}; export HOME=$PWD PATH={LODEFS.parent}:$PATH"
        return self._cluster.output(
            "sh", "-ec", f"{place} LODEFS_STORE=$PWD/store LODEFS_CONFIG=/dev/null; {script}"
        )

    def submit(self, name: str) -> int:
        """Submits the script as it stands, for nodes that are smaller than its author's."""
        outputs = f"--output={self.folder}/{name}-%a-%N"
        return int(self.sh(f"sbatch --parsable --cpus-per-task=1 {outputs} {self.script}"))

    def await_end(self, job: int) -> None:
        """Waits until no task of a job is left."""
        self._cluster.until(
            lambda: not self._cluster.output("squeue", "-h", "-j", str(job)),
            f"the end of job {job}",
            ARRAY_TIMEOUT_S,
        )

    def outputs(self, name: str) -> list[Path]:
        """The files that the tasks of an array have written."""
        return sorted(self.folder.glob(f"{name}-*"))


def test_an_array_on_three_nodes_makes_the_commit_of_a_plain_push(cluster: Cluster) -> None:
    """The page's script runs as it stands, with one task requeued; its finish waits for it."""
    pusher = Pusher(cluster)
    assert "3 parts, 6,500 files" in pusher.sh(PLAN)
    array = pusher.submit("array")
    cluster.until(lambda: bool(pusher.outputs("array")), "the first task")
    cluster.call("scontrol", "requeue", f"{array}_1")
    page = (ROOT / "docs" / "many-machines.md").read_text()
    (finish,) = re.findall(r"`(sbatch --dependency=[^`]+)`", page)
    waiting = finish.replace("\n", " ").replace("JOB", str(array))
    assert "Submitted batch job" in pusher.sh(waiting)
    pusher.await_end(array)
    assert {path.name.rpartition("-")[2] for path in pusher.outputs("array")} == {*NODES}
    done = pusher.sh("lodefs plan status crawl-7 || true")
    assert "3 of 3 parts" in done, [path.read_text() for path in pusher.outputs("array")]
    cluster.until(lambda: not cluster.output("squeue", "-h"), "the commit")
    assert "commit" in pusher.sh("lodefs plan status crawl-7")
    assert "nothing changed: data/crawl@main" in pusher.sh("lodefs push ./crawl data/crawl")
