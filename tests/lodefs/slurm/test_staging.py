"""What is read of Slurm's words about a job that waits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.chunkstore.errors import NotFound
from lodefs.settings.session import Session
from lodefs.slurm import staging
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


def test_the_user_is_slurms_word_and_no_job_names_its_own() -> None:
    """A name or comment with lines of its own makes the user unknown, not another one."""
    line = "   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A\n"
    told = "JobId=7 JobName=x\n" + line
    assert shown_job(told).uid == 1000
    assert shown_job(told + "\n" + told).uid == 1000
    assert shown_job("JobId=7 JobName=x\n").uid is None
    forged = "   UserId=root(0)\n"
    assert shown_job(f"JobId=7 JobName=x\n{forged}{line}").uid is None
    assert shown_job(f"{told}   Comment=y\n{forged}").uid is None


def session(folder: Path) -> Session:
    """Settings with a rule, and a store that nobody may ask."""
    config = folder / "lodefs.toml"
    config.write_text('store = "/nosuch"\n[access]\n"medical/*" = ["4242424"]\n')
    return Session({"HOME": str(folder), "LODEFS_CONFIG": str(config)})


def test_what_the_jobs_user_may_not_read_is_not_staged(tmp_path: Path) -> None:
    """Whether script or comment names it, and when it is warmed; Slurm's own rights do not count,
    and nothing is asked of the store or written."""
    asked: list[list[str]] = []

    def job(comment: str, words: Sequence[str]) -> str:
        asked.append(list(words))
        return f"JobId=7\n   UserId=x(3999999)\n   NodeList=n1\n   Comment={comment}\n"

    hidden = "there is no repository medical/x that you may read"
    comment = f"lodefs=medical/x@{'a' * 64}:/d"
    with pytest.raises(NotFound, match=hidden):
        staging.stage(session(tmp_path), partial(job, ""), 7, "medical/x@main:/d")
    with pytest.raises(NotFound, match=hidden):
        staging.stage(session(tmp_path), partial(job, comment), 7, "")
    with pytest.raises(NotFound, match=hidden):
        staging.warm_nodes(session(tmp_path), partial(job, comment), 7, 1.0)
    assert asked == [["show", "job", "7"]] * 3


@pytest.mark.parametrize(
    ("uid", "code", "said"),
    [
        ("3999999", 3, "there is no repository medical/x that you may read"),
        ("", 0, ""),
        ("-1", 2, "number of a user"),
    ],
)
def test_submission(
    tmp_path: Path, uid: str, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The submitting user's rights count; where Slurm does not tell who it is, nothing is told."""
    words = ["slurm", "resolve", "--uid", uid, "--", "medical/x@main:/d"]
    assert run(words, session(tmp_path)) == code
    out, err = capfd.readouterr()
    assert said in err
    assert not out.strip()


def test_who_may_not_commit_is_told_at_submission(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the submit host, or the controller, has the rules; before anything is asked."""
    config = tmp_path / "lodefs.toml"
    config.write_text('store = "/nosuch"\n[writers]\n"team/*" = ["4242424"]\n')
    asked = Session({"HOME": str(tmp_path), "LODEFS_CONFIG": str(config)})
    words = ["slurm", "resolve", "--uid", "3999999", "--", "team/x@main:/d:rw"]
    assert run(words, asked) != 0
    assert "jobs of yours may not commit to it" in capfd.readouterr().err
