"""Rules of access while groups come and go."""

from __future__ import annotations

from collections.abc import Callable

from lodefs.chunkstore.protocol.access import LOOK_AGAIN_S, AccessRules, CurrentRules
from lodefs.chunkstore.system.sockets import Peer

TABLE = {"medical/*": ("cardiology", "1200"), "law/*": ("lawyers",)}
MEMBER = Peer(5, frozenset({77}))


class Machine:
    """Its groups, a clock, and calls that wait to be made."""

    def __init__(self, **groups: int) -> None:
        self.groups = dict(groups)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.now_s = 0.0
        self.calls: list[Callable[[], None]] = []
        self.rules = CurrentRules(
            TABLE, self._gid_of, say=self.said.append, clock=lambda: self.now_s,
            start=self.calls.append,
        )  # fmt: skip

    def _gid_of(self, group: str) -> int | None:
        self.asked.append(group)
        return self.groups.get(group)

    def later(self) -> AccessRules:
        """The rules after a while, when what was begun by asking has come to its end."""
        self.now_s += LOOK_AGAIN_S
        self.rules()
        while self.calls:
            self.calls.pop()()
        return self.rules()


def test_a_missing_group_is_told_once_and_lets_nobody_in() -> None:
    """However often it is looked for."""
    machine = Machine(lawyers=78)
    assert machine.said == ["[access] 'medical/*': there is no group cardiology; it lets nobody in"]
    for _ in range(3):
        assert not machine.later().may_read(MEMBER, "medical/scans")
    assert len(machine.said) == 1


def test_it_lets_its_members_in_when_it_is_there() -> None:
    """Then nothing is looked up any more."""
    machine = Machine(lawyers=78)
    machine.groups["cardiology"] = 77
    assert not machine.rules().may_read(MEMBER, "medical/scans")
    assert machine.later().may_read(MEMBER, "medical/scans")
    assert machine.said[1:] == ["[access]: a group that was missing exists now"]
    asked = len(machine.asked)
    machine.later()
    assert len(machine.asked) == asked


def test_asking_waits_for_no_directory_of_users() -> None:
    """One look at a time is begun, and the old rules count until it has come to its end; after it,
    not before the pause is over."""
    machine = Machine()
    machine.now_s += LOOK_AGAIN_S
    for _ in range(5):
        assert not machine.rules().may_read(MEMBER, "medical/scans")
        machine.now_s += LOOK_AGAIN_S
    (look,) = machine.calls
    machine.groups["cardiology"] = 77
    look()
    assert machine.rules().may_read(MEMBER, "medical/scans")


def test_a_group_that_cannot_be_looked_up_breaks_nothing() -> None:
    """A group that is gone for a moment keeps its number, so that nobody is shut out."""
    machine = Machine(cardiology=77)
    del machine.groups["cardiology"]
    machine.groups["lawyers"] = 78
    rules = machine.later()
    assert rules.may_read(MEMBER, "medical/scans")
    assert rules.may_read(Peer(6, frozenset({78})), "law/x")
