"""What is read of Slurm's words about a job that waits."""

from __future__ import annotations

import pytest

from lodefs.slurm.staging import owner_of, shown_job

SHOWN = """\
JobId=7 {array}JobName=train
   JobState=PENDING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={nodes}
   Comment=run 7 lodefs=a/b@main:/tmp/x=y
   StdErr=/tmp/7
"""


@pytest.mark.parametrize(
    ("array", "nodes", "is_array", "has"),
    [("", "(null)", False, ""), ("ArrayJobId=5 ArrayTaskId=2 ", "n[1-3]", True, "n[1-3]")],
)
def test_comment_nodes_and_arrays(array: str, nodes: str, is_array: bool, has: str) -> None:
    """A comment may hold blanks and equals signs; other lists of nodes are not the job's."""
    job = shown_job(SHOWN.format(array=array, nodes=nodes))
    assert (job.comment, job.nodes, job.is_array) == (
        "run 7 lodefs=a/b@main:/tmp/x=y",
        has,
        is_array,
    )


def test_a_job_without_a_comment() -> None:
    """Its pins have an owner all the same, which no other job has."""
    assert shown_job("JobId=7 JobName=x\n").comment == ""
    assert owner_of(7) != owner_of(70)
