"""``./run bench root-races``: each attack so many times, and what root touched elsewhere."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import NamedTuple

from loadtests.errors import LoadtestError
from loadtests.results import Result
from loadtests.rootraces.attacks import ATTACKS, Attack, Touched, is_refusal
from loadtests.rootraces.user import attacking
from loadtests.rootraces.world import World, world
from lodefs.mount.kernel import namespaces

TRIES = 10_000  # of all attacks together
_WORDS_MAX = 200


class Outcome(NamedTuple):
    """Of the tries of one attack. ``refused``: root said no; ``faults``: it ended in another way,
    ``fault`` is the first of them."""

    attack: str
    tries: int
    refused: int
    touched: int
    faults: int
    fault: str = ""


def root_races(scratch: Path, tries: int = TRIES) -> Result:
    """All attacks, in a mount namespace of its own. Raises: LoadtestError for who is not root."""
    if os.geteuid() != 0:
        raise LoadtestError("root-races: only root can be attacked; run it as root")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        outcomes = pool.apply(_all, (scratch, tries))
    result = Result("root-races")
    result.add("tries", sum(one.tries for one in outcomes), at_least=tries)
    for one in outcomes:
        name = f"{one.attack}, {one.tries} tries"
        result.add(f"{name}: touched elsewhere", one.touched, at_most=0)
        result.add(f"{name}: refused", one.refused)
        if one.faults:
            result.add(f"{name}: faults", one.faults, at_most=0)
            result.notes.append(f"{one.attack}: {one.fault}")
    return result


def _all(scratch: Path, tries: int) -> list[Outcome]:
    namespaces.enter_new(user=False)
    scratch.chmod(0o755)
    each = -(-tries // len(ATTACKS))
    return [race(scratch / name, name, each) for name in ATTACKS]


def race(folder: Path, name: str, tries: int) -> Outcome:
    """One attack, below a directory that users may enter and that is made. Needs root, in a mount
    namespace of its own, and no threads."""
    with world(folder) as made:
        return played(made, name, ATTACKS[name](made), tries)


def played(made: World, name: str, attack: Attack, tries: int) -> Outcome:
    """What became of the tries of an attack."""
    refused = touched = faults = 0
    fault = ""
    made.before = made.seen()
    standing = made.mounts()
    with attacking(attack.moves) as hold:
        for _ in range(tries):
            try:
                attack.work()
            except Touched:
                touched += 1
            except Exception as error:  # noqa: BLE001 - all of them are told
                if is_refusal(error):
                    refused += 1
                else:
                    faults += 1
                    fault = fault or f"{type(error).__name__}: {error}"[:_WORDS_MAX]
            now = made.seen()
            if now != made.before:
                touched += 1
                made.before = now
            if made.mounts() != standing:  # in the user's own directories: not unmounted in time
                hold(True)  # noqa: FBT003
                made.take_off(made.home)
                hold(False)  # noqa: FBT003
                standing = made.mounts()
    return Outcome(name, tries, refused, touched, faults, fault)
