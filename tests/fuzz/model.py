"""What must hold after each command: which bytes each head has, and what was promised.

Pure: it is told what a command was, how it ended, and what a fresh machine reads in each store
before and after it, and says what is wrong with that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Diverged,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Purged,
)
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import ChunkId, CommitId
from lodefs.chunkstore.maintenance.purge import PurgePlan
from lodefs.chunkstore.push.push import PushResult
from lodefs.chunkstore.repair.repair import RepairResult
from lodefs.chunkstore.repair.scrub import ScrubResult
from lodefs.chunkstore.transfer.copy import CopyResult
from tests.fuzz import commands as say
from tests.fuzz.reading import At, Seen, SeenCommit, is_away
from tests.fuzz.world import Outcome

Contents = dict[bytes, bytes]  # of a version, by path

# What a command may be refused for in stores that are sound, with all requests answered
_REFUSALS = (AlreadyExists, Conflict, Diverged, InvalidInput, NoSpace, NotFound, Purged)


_NO_COMMANDS = say.Damage | say.ChangeObject | say.Wait | say.SetClock | say.Both


class Wrong(AssertionError):
    """The product broke a promise."""


@dataclass
class Ledger:
    """What is known of one store besides what can be read: ``damaged``: keys whose objects are as
    damage left them (None: lost); ``purged``: chunks that the documents of purges name, which are
    there before anything is removed, by a purge that died too, and of bytes that came beside it;
    ``gone``: those that a purge has removed to its end."""

    damaged: dict[str, bytes | None] = field(default_factory=dict)
    purged: set[ChunkId] = field(default_factory=set)
    gone: set[ChunkId] = field(default_factory=set)
    was_disturbed: bool = False  # a process died or failed, which may leave unlisted packs
    was_damaged: bool = False  # once: no repair looks at what no ref leads to
    has_policy: bool = False
    was_away: bool = False  # a version has lost bytes in a bucket, once
    has_gaps: bool = False  # a version came without something, and was excused
    renamed: set[str] = field(default_factory=set)  # names that have led, or lead, to each other

    def is_same(self, one: str, other: str) -> bool:
        """Whether two names may be of one repository."""
        return one == other or {one, other} <= self.renamed

    def forget_changed(self, objects: Mapping[str, bytes]) -> None:
        """What somebody has written, or deleted, since it was damaged."""
        damaged = self.damaged.items()
        self.damaged = {key: data for key, data in damaged if objects.get(key) is data}

    def repair(self) -> None:
        """After a repair that left nothing. Bytes of packs that nothing leads to are not read."""
        self.damaged = {
            key: data
            for key, data in self.damaged.items()
            if data is not None and key.startswith(("packs/", "composites/data/"))
        }


class Model:
    """All stores. ``chunks_of``: the ids of the chunks of a content; ``is_rotten``: whether a pack
    of a store has wrong bytes: no push reads them, and they stay when a pack is compacted;
    ``bucket``: what a bucket has now."""

    def __init__(
        self,
        stores: int,
        sources: Sequence[Contents],
        chunks_of: Mapping[bytes, frozenset[ChunkId]],
        is_rotten: Callable[[int], bool],
        bucket: Callable[[int], Contents],
    ) -> None:
        self.ledgers = [Ledger() for _ in range(stores)]
        self.contents: dict[CommitId, Contents] = {}
        self._sources = sources
        self._chunks_of = chunks_of
        self.is_rotten = is_rotten
        self._bucket = bucket

    def is_sound(self, store: int, seen: Seen) -> bool:
        """Whether nothing is known to be wrong with a store."""
        return not self.ledgers[store].damaged and not seen.lost

    def judge(
        self,
        done: Sequence[tuple[say.Command, Outcome]],
        before: Sequence[Seen],
        after: Sequence[Seen],
    ) -> Iterator[str]:
        """What is wrong after one command, or two at once. What was read of new versions is
        learned."""
        for command, outcome in done:
            yield from self._ended(command, outcome, before, alone=len(done) == 1)
            self._note(command, outcome, alone=len(done) == 1)
            if len(done) == 1:
                yield from _copied(command, outcome, after)
                yield from _renamed(command, outcome, before, after)
        commands = [command for command, _ in done]
        for store in range(len(after)):
            self.ledgers[store].was_away |= any(map(is_away, after[store].lost.values()))
            yield from self._refs(store, commands, before[store], after[store])
            for at, commit in after[store].commits.items():
                known = before[store].commits.get(at)
                if known is None:
                    yield from self._new(store, at, commit, done, before, after)
                else:
                    yield from self._as_before(store, at, known, commit, commands)
            yield from self._expired(store, commands, before[store], after[store])

    def learn(self, at: CommitId, contents: Contents) -> None:
        """What a version has, as its writer knows."""
        known = self.contents.setdefault(at, contents)
        if known != contents:
            raise Wrong(f"commit {at.hex()[:8]} has two contents")

    def _ended(
        self, command: say.Command, outcome: Outcome, before: Sequence[Seen], *, alone: bool
    ) -> Iterator[str]:
        """Whether a command may end so."""
        if isinstance(command, _NO_COMMANDS):
            return
        stores = {command.store}
        stores |= {command.source} if isinstance(command, say.Copy | say.Bundle) else set()
        stores |= {command.mirror} if isinstance(command, say.ReadMirrored) else set()
        is_sound = all(self.is_sound(store, before[store]) for store in stores)
        error = outcome.error
        is_calm = is_sound and command.fault is None and alone
        if error is not None and is_calm and not _may_be_refused(command, error):
            yield f"{type(command).__name__} ends with {error!r}"
        result = outcome.result
        contents = self._brought(command)
        if contents is not None and isinstance(result, PushResult):
            at = CommitId(bytes.fromhex(result.commit))
            self.learn(at, contents)
            is_again = isinstance(command, say.PlanFinish) and at in self._ids(
                before[command.store]
            )
            if not is_again and (purged := self._purged_in(command.store, contents)):
                yield f"a push stores bytes that were purged: {purged}"
        if isinstance(command, say.Scrub) and isinstance(result, ScrubResult):
            yield from self._scrubbed(command, result, is_sound=is_sound and alone)
        if is_sound and alone and isinstance(result, RepairResult):
            yield from self.false_findings(command.store, result)

    def _ids(self, seen: Seen) -> set[CommitId]:
        return {at for _, at in seen.commits}

    def _brought(self, command: say.Command) -> Contents | None:
        """What a push of any kind brings, if it is done now; None of another command."""
        match command:
            case say.Push(source=source):
                return self._sources[source]
            case say.PlanFinish(plan=plan):
                return self._sources[say.PLANS[plan][0]]
            case say.Import(bucket=bucket):
                return self._bucket(bucket)
            case _:
                return None

    def repaired(
        self, command: say.Repair, result: RepairResult, before: Sequence[Seen], after: Seen
    ) -> Iterator[str]:
        """What a repair has to have repaired, and to have told."""
        if command.data and after.lost and not result.left:
            yield f"a repair leaves nothing, but {after.lost}"
        left = [one for one in result.left if "/refs/" not in one.key]  # a lost ref is not seen
        left = [one for one in left if not is_away(one.what)]  # perhaps of a chunk without a file
        # nor wrong bytes that only purged files have
        if left and not after.lost and not self.is_rotten(command.store):
            yield f"a repair leaves {left}, and all is there"
        for source in map(int, (one[6:] for one in command.sources if one.startswith("store:"))):
            for at, commit in after.commits.items() if command.data else ():
                there = before[source].commits.get(at, SeenCommit())
                for path, why in commit.lost.items():
                    if is_away(why):  # and so may others of the pack be
                        continue
                    if there.files.get(path) is not None or (path == b"" and there.is_whole):
                        yield f"store {source} has {_name(source, at, path)}, but here: {why}"

    def not_worse(
        self, store: int, command: say.Command, before: Seen, after: Seen
    ) -> Iterator[str]:
        """What was there in a store, or a clone of it, is there after a command."""
        for at, commit in after.commits.items():
            if (known := before.commits.get(at)) is not None:
                yield from self._as_before(store, at, known, commit, [command])

    def may_refuse(self, store: int, contents: Contents) -> bool:
        """Whether a push of them may fail: they were purged, or more is damaged than packs."""
        ledger = self.ledgers[store]
        if any(not key.startswith(("packs/", "composites/data/")) for key in ledger.damaged):
            return True
        return any(self._chunks_of[data] & ledger.purged for data in contents.values())

    def _purged_in(self, store: int, contents: Contents) -> str:
        gone = self.ledgers[store].gone
        paths = [path for path, data in contents.items() if self._chunks_of[data] & gone]
        return ", ".join(path.decode() for path in paths)

    def false_findings(self, store: int, result: RepairResult) -> Iterator[str]:
        """Of a repair of a sound store."""
        for finding in result.findings:
            is_known = is_away(finding.what)  # perhaps of a chunk that no file has
            if not is_known and not self.may_be_announced(store, finding.key, finding.what):
                yield f"a false alarm of repair: {finding.key}: {finding.what}"

    def may_be_announced(self, store: int, key: str, what: str) -> bool:
        """Whether an entry of a ref may seem to be lost: a writer that died between its intent
        and the entry leaves what a store leaves that loses the entry."""
        is_entry = key.startswith("repos/") and "/refs/" in key and what.startswith("lost")
        return is_entry and self.ledgers[store].was_disturbed

    def _scrubbed(
        self, command: say.Scrub, result: ScrubResult, *, is_sound: bool
    ) -> Iterator[str]:
        if is_sound and result.damaged and not self.is_rotten(command.store):
            yield f"a false alarm of scrub: {result.damaged}"
        found = {f"packs/{one.pack_id.hex()[:2]}/{one.pack_id.hex()}" for one in result.damaged}
        for key, data in self.ledgers[command.store].damaged.items():
            is_pack = key.startswith("packs/") and data is not None
            if is_pack and command.parts == 1 and command.fault is None and key not in found:
                yield f"scrub does not tell of {key}"

    def _note(self, command: say.Command, outcome: Outcome, *, alone: bool) -> None:
        """What the ledgers remember of it."""
        if isinstance(command, _NO_COMMANDS):
            return
        ledger = self.ledgers[command.store]
        if outcome.was_killed or outcome.error is not None or not alone:
            ledger.was_disturbed = True
        if isinstance(command, say.Copy | say.Bundle):
            ledger.has_policy |= self.ledgers[command.source].has_policy
        if isinstance(command, say.Rename):
            ledger.renamed |= {command.repo, command.new}
        if isinstance(command, say.Retain):
            ledger.has_policy |= command.policy > 0
        if isinstance(command, say.Purge) and isinstance(outcome.result, tuple):
            plan, result = outcome.result
            assert isinstance(plan, PurgePlan)
            is_calm = alone and command.fault is None
            if is_calm and result is not None and not (result.left or result.writers):
                ledger.gone |= set(plan.chunks)

    def _refs(
        self, store: int, commands: Sequence[say.Command], before: Seen, after: Seen
    ) -> Iterator[str]:
        """Only what a command is about moves."""
        if any(isinstance(command, say.Damage) for command in commands):
            return
        for ref in before.heads.keys() | after.heads.keys():
            was, now = before.heads.get(ref), after.heads.get(ref)
            if was != now and not any(self._may_move(store, one, ref) for one in commands):
                yield f"{'/'.join(ref)} of store {store} was moved by {commands}"

    def _may_move(self, store: int, command: say.Command, ref: RefName) -> bool:
        match command:
            case say.PlanFinish(plan=plan):
                _, repo, branch = say.PLANS[plan]
                is_own = command.store == store and self.ledgers[store].is_same(ref.repo, repo)
                return is_own and ref[1:] == ("branches", branch)
            case (
                say.Push()
                | say.Import()
                | say.Change()
                | say.Merge()
                | say.Revert()
                | say.CopyPath()
            ):
                places = [(command.repo, command.branch)]
                if isinstance(command, say.CopyPath) and command.move:
                    places.append((command.source, command.rev))
                is_same = self.ledgers[store].is_same
                return command.store == store and any(
                    is_same(ref.repo, repo) and ref[1:] == ("branches", branch)
                    for repo, branch in places
                )
            case say.Fork(new=new):
                return command.store == store and ref == (new, "branches", "main")
            case say.Rename(repo=repo, new=new):
                return command.store == store and ref.repo in (repo, new)
            case say.Point(name=name):
                return command.store == store and ref[::2] == (command.repo, name)
            case say.Delete(name=name) | say.Undelete(name=name):
                is_own = command.store == store and ref.repo == command.repo
                return is_own and name in (None, ref.name)
            case say.Copy(rev=rev) | say.Bundle(rev=rev):
                is_own = command.store == store and ref.repo == command.repo
                return is_own and rev in (None, ref.name)
            case say.Repair():
                ledger = self.ledgers[store]
                return command.store == store and (bool(ledger.damaged) or ledger.was_disturbed)
            case _:
                return False

    def _as_before(
        self,
        store: int,
        at: At,
        known: SeenCommit,
        commit: SeenCommit,
        commands: Sequence[say.Command],
    ) -> Iterator[str]:
        """What was there is there."""
        if any(isinstance(one, say.Damage) and one.store == store for one in commands):
            return
        worse = commit.lost.keys() - known.lost.keys()
        known_lost = tuple(path + b"/" for path in known.lost)
        worse = {path for path in worse if b"" not in known.lost}
        worse = {path for path in worse if not path.startswith(known_lost)}
        if any(isinstance(one, say.ChangeObject) for one in commands):
            worse = {path for path in worse if not is_away(commit.lost[path])}
        for path in worse:
            yield f"{_name(store, at, path)} was there before: {commit.lost[path]}"
        for path, data in commit.files.items():
            was = known.files.get(path)
            if data is not None and was not in (None, data):
                yield f"{_name(store, at, path)} has other bytes than before"
            if data is None and was is not None and not self._is_purged(store, was):
                yield f"{_name(store, at, path)} counts as purged, and nobody purged it"

    def _is_purged(self, store: int, data: bytes | None) -> bool:
        return data is not None and bool(self._chunks_of_any(data) & self.ledgers[store].purged)

    def _chunks_of_any(self, data: bytes) -> frozenset[ChunkId]:
        return self._chunks_of.get(data, frozenset())

    def _new(
        self,
        store: int,
        at: At,
        commit: SeenCommit,
        done: Sequence[tuple[say.Command, Outcome]],
        before: Sequence[Seen],
        after: Sequence[Seen],
    ) -> Iterator[str]:
        """A version that nothing led to before."""
        commands = [command for command, _ in done]
        if any(isinstance(one, say.Damage) and one.store == store for one in commands):
            return
        wanted = self._wanted(at, commit, commands)
        if wanted is None:
            return
        for path, data in wanted.items():
            is_lost = path not in commit.files
            found = commit.files.get(path)
            if not is_lost and found == data:
                continue
            if found is not None:
                yield f"{_name(store, at, path)} has other bytes than it should"
            elif self._is_excused(store, at, path, commands, before):
                self.ledgers[store].has_gaps = True
            else:
                why = "it counts as purged" if not is_lost else str(commit.lost)
                yield f"{_name(store, at, path)} came without its bytes: {why}"
        for path in commit.files.keys() - wanted.keys():
            yield f"{_name(store, at, path)} should not be there"

    def _wanted(
        self, at: At, commit: SeenCommit, commands: Sequence[say.Command]
    ) -> Contents | None:
        """What a version must have; learned of the source if the process of a push died, and else
        from the version itself."""
        known = self.contents.get(at[1])
        if known is not None:
            return known
        if commit.lost or None in commit.files.values():
            return None
        found = {path: data for path, data in commit.files.items() if data is not None}
        pushes = [one for one in map(self._brought, commands) if one is not None]
        if pushes and len(pushes) == len(commands) and found not in pushes:
            raise Wrong(f"commit {at[1].hex()[:8]} is none of what was pushed")
        self.learn(at[1], found)
        return found

    def _is_excused(
        self,
        store: int,
        at: At,
        path: bytes,
        commands: Sequence[say.Command],
        before: Sequence[Seen],
    ) -> bool:
        """Whether a version may come without a file: what it was made of lacked it already, or
        the bytes were purged. A copy brings what a version names and the one before it does not:
        what the destination had lost of that one it does not look at again, and verify tells of
        it."""
        ledger = self.ledgers[store]
        data = self.contents[at[1]][path]
        for command in commands:
            match command:
                case say.Purge():  # beside a push: it was stored right before
                    is_excused = self._is_purged(store, data)
                case say.Copy(source=source) | say.Bundle(source=source):
                    there = before[source].commits.get(at, SeenCommit())
                    is_excused = there.files.get(path) is None or self._is_purged(store, data)
                    if isinstance(command, say.Copy):
                        own = before[store].commits.items()
                        is_excused |= any(
                            _lacks(one, path) for (repo, _), one in own if repo == at[0]
                        )
                case say.Change() | say.Merge() | say.Revert():
                    is_excused = any(_lacks(one, path) for one in before[store].commits.values())
                case say.Import(repo=repo, branch=branch):
                    # What the head has it does not look at, unless it is asked to (push --check)
                    head = before[store].heads.get(RefName(repo, "branches", branch))
                    known = before[store].commits.get((repo, head)) if head else None
                    is_excused = known is not None and _is_lost(known, path)
                case say.PlanFinish():
                    # What a part relied on may be lost before the plan is finished, days later
                    is_excused = ledger.was_damaged
                case say.CopyPath():
                    is_excused = any(one.is_damaged for one in before[store].commits.values())
                case say.Undelete() | say.Point() | say.Repair() | say.Fork() | say.Rename():
                    is_excused = ledger.was_damaged or ledger.has_gaps or bool(ledger.purged)
                    is_excused |= ledger.was_away
                case _:
                    is_excused = False
            if is_excused:
                return True
        return self.is_rotten(store)

    def _expired(
        self, store: int, commands: Sequence[say.Command], before: Seen, after: Seen
    ) -> Iterator[str]:
        """History ends only where a policy says so."""
        for at in after.expired & before.commits.keys():
            if not self.ledgers[store].has_policy:
                yield f"{_name(store, at, b'')} has expired, and nobody wanted that: {commands}"


def _is_lost(commit: SeenCommit, path: bytes) -> bool:
    """Whether a version has a file that cannot be read."""
    return any(not lost or path == lost or path.startswith(lost + b"/") for lost in commit.lost)


def _lacks(commit: SeenCommit, path: bytes) -> bool:
    """Whether a version is without a file, or it is not known."""
    above = any(not lost or path.startswith(lost + b"/") for lost in commit.lost)
    return above or path in commit.lost or commit.files.get(path, b"") is None


def _copied(command: say.Command, outcome: Outcome, after: Sequence[Seen]) -> Iterator[str]:
    """What a copy says that it has brought."""
    if isinstance(command, say.Copy) and isinstance(outcome.result, CopyResult):
        for one in outcome.result.refs:
            if after[command.store].heads.get(one.ref) != one.after:
                yield f"{'/'.join(one.ref)} is not where the copy says"


def _renamed(
    command: say.Command, outcome: Outcome, before: Sequence[Seen], after: Sequence[Seen]
) -> Iterator[str]:
    """Whatever became of a renaming, each ref is under one of both names."""
    if not isinstance(command, say.Rename) or command.repo == command.new:
        return
    now = after[command.store].heads
    for ref, commit in before[command.store].heads.items():
        if ref.repo == command.repo:
            to = now.get(ref._replace(repo=command.new))
            if commit not in (to, now.get(ref)):
                yield f"{'/'.join(ref)} was lost by a renaming"
            if outcome.result is not None and to != commit:
                yield f"{'/'.join(ref)} was not renamed"


def _may_be_refused(command: say.Single, error: LodefsError) -> bool:
    match command:
        case say.Collect() | say.Scrub() | say.Repair() | say.ReadMirrored():
            return False
        case _:
            return isinstance(error, _REFUSALS)


def _name(store: int, at: At, path: bytes) -> str:
    return f"store {store}: {at[0]}@{at[1].hex()[:8]}:{path.decode()}"
