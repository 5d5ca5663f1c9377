"""Jobs of a real Slurm read datasets; all of a job reads one commit."""

from __future__ import annotations

from loadtests.slurm.cluster import Cluster
from tests.slurm.dataset import REPO, Dataset


def test_an_option_of_srun_shows_a_dataset_on_all_nodes_of_the_job_and_to_nobody_else(
    cluster: Cluster, dataset: Dataset
) -> None:
    """An option of srun shows a dataset on all nodes of the job and to nobody else."""
    script = f"{dataset.read}; touch {dataset.directory}/x || echo read-only"
    said = cluster.output("srun", dataset.option, "-N3", "sh", "-c", script)
    assert sorted(said.splitlines()) == ["read-only"] * 3 + [dataset.text] * 3
    assert cluster.call("ls", dataset.directory).stdout == ""


def test_sbatch_shows_it_to_the_script_and_to_the_steps_that_it_starts(
    cluster: Cluster, dataset: Dataset
) -> None:
    """sbatch shows it to the script and to the steps that it starts."""
    job = cluster.submit(f"{dataset.read}\nsrun {dataset.read}", "-N2", dataset.option)
    cluster.await_state(job, "COMPLETED")
    assert cluster.said(job).splitlines() == [dataset.text] * 3


def test_salloc_gives_it_to_its_steps(cluster: Cluster, dataset: Dataset) -> None:
    """Salloc gives it to its steps."""
    said = cluster.output("salloc", "-N2", dataset.option, "srun", *dataset.read.split())
    assert said.splitlines() == [dataset.text] * 2


def test_both_components_of_a_heterogeneous_job_have_it(cluster: Cluster, dataset: Dataset) -> None:
    """Both components of a heterogeneous job have it."""
    one = ["-N1", dataset.option, *dataset.read.split()]
    said = cluster.output("srun", *one, ":", *one)
    assert said.splitlines() == [dataset.text] * 2


def test_a_comment_is_enough_where_there_is_no_plugin(cluster: Cluster, dataset: Dataset) -> None:
    """The task prolog says where the dataset is."""
    script = f'echo "$LODEFS_ROOT"; cat "$LODEFS_ROOT{dataset.directory}/version"'
    job = cluster.submit(script, f"--comment=run 7 lodefs={dataset.branch}")
    cluster.await_state(job, "COMPLETED")
    assert cluster.said(job).split("\n")[:2] == [f"/run/lodefs/jobs/{job}", dataset.text]
    fixed = f"{REPO}@{dataset.commit}:{dataset.directory}"
    assert cluster.field(job, "Comment").strip() == f"run 7 lodefs={fixed}"


def test_jobs_of_a_node_share_a_mount(cluster: Cluster, dataset: Dataset) -> None:
    """Jobs of a node share a mount."""
    words = ["srun", "-w", "n1", dataset.option, "stat", "-c", "%d", dataset.directory]
    hold = cluster.submit("sleep 60", "-w", "n1", dataset.option)
    cluster.await_state(hold, "RUNNING")
    first, second = cluster.output(*words), cluster.output(*words)
    cluster.output("scancel", str(hold))
    assert first == second


def test_tasks_of_an_array_read_the_commit_of_the_submission(
    cluster: Cluster, dataset: Dataset
) -> None:
    """Another commit is pushed while they run, one after the other."""
    before = dataset.text
    words = [
        "--array=1-4%1",
        "-w",
        "n1",
        f"--output={cluster.folder}/jobs/array-%a",
        dataset.option,
    ]
    job = cluster.submit(f"{dataset.read}; sleep 1", *words)
    cluster.until(lambda: before in _said_by_all(cluster), "the first task")
    dataset.push()
    cluster.until(lambda: cluster.output("squeue", "-h", "-j", str(job)) == "", "the array's end")
    assert _said_by_all(cluster).count(before) == 4
    assert dataset.text not in _said_by_all(cluster)


def test_a_requeued_job_reads_the_commit_of_its_submission(
    cluster: Cluster, dataset: Dataset
) -> None:
    """A requeued job reads the commit of its submission, which its record names."""
    before, commit = dataset.text, dataset.commit
    script = f"{dataset.read}; [ $SLURM_RESTART_COUNT ] || sleep 60"
    job = cluster.submit(script, "--open-mode=append", dataset.option)
    cluster.until(lambda: before in cluster.said(job), "its first run")
    dataset.push()
    cluster.requeue(job)
    cluster.await_state(job, "COMPLETED")
    assert cluster.said(job).splitlines().count(before) == 2
    assert f"@{commit}:" in cluster.field(job, "Comment")


def test_data_is_pinned_while_a_job_runs(cluster: Cluster, dataset: Dataset) -> None:
    """Data is pinned while a job runs."""
    job = cluster.submit("sleep 60", dataset.option)
    cluster.until(lambda: _pinned(cluster), "a pin")
    cluster.output("scancel", str(job))
    cluster.until(lambda: not _pinned(cluster), "no pin")


def test_setuid_programs_have_no_power_where_a_dataset_is_shown(
    cluster: Cluster, dataset: Dataset
) -> None:
    """Setuid programs have no power where a dataset is shown."""
    said = cluster.output("srun", dataset.option, "grep", "NoNewPrivs", "/proc/self/status")
    assert said.split() == ["NoNewPrivs:", "1"]
    said = cluster.output("srun", "grep", "NoNewPrivs", "/proc/self/status")
    assert said.split() == ["NoNewPrivs:", "0"]


def _said_by_all(cluster: Cluster) -> str:
    """What the tasks of the array have written."""
    files = (cluster.folder / "jobs").glob("array-*")
    return "".join(path.read_text() for path in files)


def _pinned(cluster: Cluster) -> bool:
    return any("pin of" in left for left in cluster.leftovers())
