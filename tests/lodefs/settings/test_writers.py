"""Whose jobs may commit to a repository with the node's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound
from lodefs.chunkstore.system.sockets import Peer
from lodefs.settings import access_rules
from lodefs.settings.access_rules import check_writer
from lodefs.settings.session import Session

MINE, OTHERS = 1234567, 4242424
USER = 4242  # of no account, and so in no group
SETTINGS = f"""\
[access]
"hidden/*" = ["{OTHERS}"]
[writers]
"team/*" = ["{MINE}"]
"team/old/*" = ["{OTHERS}"]
"all/*" = ["*"]
"hidden/*" = ["*"]
"""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    (tmp_path / "lodefs.toml").write_text(SETTINGS)
    return Session({"LODEFS_CONFIG": str(tmp_path / "lodefs.toml")})


@pytest.mark.parametrize(
    ("repo", "refused"),
    [
        ("all/cats", None),
        ("team/cats", Denied),
        ("team/old/cats", Denied),
        ("cats", Denied),  # nobody's, where no pattern covers it
        ("hidden/cats", NotFound),  # a job may not learn that it is there
    ],
)
def test_a_user_without_a_group(
    session: Session, repo: str, refused: type[LodefsError] | None
) -> None:
    """May what is everybody's, and be shown."""
    if refused is None:
        check_writer(session, USER, repo)
        return
    with pytest.raises(refused, match=repo):
        check_writer(session, USER, repo)


def test_a_group_may(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the longest pattern gives it."""
    in_group = Peer(USER, frozenset({MINE}))
    monkeypatch.setattr(access_rules, "user_of", lambda _uid: in_group)
    check_writer(session, USER, "team/cats")
    with pytest.raises(Denied):
        check_writer(session, USER, "team/old/cats")
