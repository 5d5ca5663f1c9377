"""Plays histories by hand: ``python -m tests.fuzz [--seeds A:B] [--minutes N]``."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import commands as say
from tests.fuzz.histories import history as history_of
from tests.fuzz.model import Wrong
from tests.fuzz.play import Played, play, shorten
from tests.fuzz.world import Material, make_material
from tests.support.chunkstore.directories import MEMORY
from tests.support.maintenance.schedules import one_at_a_time

COMMANDS = 40
TEXT_MAX = 3000
TRIES_MAX = 400  # to shorten a history
KIND_CHARS = 30
_NUMBERS = re.compile(r"[0-9a-f]{8,}|[0-9]+")
SEEDS_AT_ONCE = 10


@dataclass
class Report:
    """What came of some seeds: of each that failed, why, and the shortest history that does."""

    played: int = 0
    done: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def main(words: Sequence[str]) -> int:
    """The exit code: 1 if any history failed."""
    parser = argparse.ArgumentParser("./run fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:200", metavar="A:B", help="from A on, B not included")
    parser.add_argument("--minutes", type=float, help="go on with the seeds after A for so long")
    parser.add_argument("--commands", type=int, default=COMMANDS, help="of each history")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--as-it-is", action="store_true", help="do not shorten what fails")
    options = parser.parse_args(words)
    began_s = time.monotonic()
    total = Report()
    with ProcessPoolExecutor(options.processes) as executor:
        jobs = _jobs(options, began_s)
        waiting = []
        for job in jobs:
            waiting.append(executor.submit(run_seeds, *job))
            if len(waiting) >= 2 * options.processes:
                _add(total, waiting.pop(0).result())
        for future in waiting:
            _add(total, future.result())
    spent_s = time.monotonic() - began_s
    for name, count in sorted(total.done.items()):
        print(f"{count:9,} {name}")
    print(
        f"{total.played:,} histories of {options.commands} commands in {spent_s:.0f} s, "
        f"{total.played / spent_s:.1f} a second: {len(total.failed)} failed"
    )
    return 1 if total.failed else 0


def _jobs(options: argparse.Namespace, began_s: float) -> Iterator[tuple[int, int, int, bool]]:
    first, last = map(int, options.seeds.split(":"))
    while first < last or options.minutes:
        if options.minutes and time.monotonic() - began_s > 60 * options.minutes:
            return
        end = first + SEEDS_AT_ONCE if options.minutes else min(first + SEEDS_AT_ONCE, last)
        yield first, end, options.commands, not options.as_it_is
        first = end


def _add(total: Report, part: Report) -> None:
    for text in part.failed:
        print(text, flush=True)
    total.played += part.played
    total.done += part.done
    total.failed += part.failed


def run_seeds(first: int, last: int, commands: int, is_shortened: bool) -> Report:
    """Plays the histories of some seeds."""
    report = Report()
    played = Played()
    level = logging.root.manager.disable
    logging.disable()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        tempfile.tempdir = name
        try:
            with one_at_a_time():
                material = make_material(Path(name) / "material")
                for seed in range(first, last):
                    text = run_seed(seed, commands, Path(name), material, played, is_shortened)
                    report.failed += [text] if text else []
                    report.played += 1
        finally:
            tempfile.tempdir = None
            logging.disable(level)
    report.done = played.done
    return report


def run_seed(
    seed: int,
    commands: int,
    directory: Path,
    material: Material,
    played: Played,
    is_shortened: bool,
) -> str:
    """What is wrong with the history of a seed, and how it is played again; "" if nothing."""
    history = history_of(seed, commands)
    error = _error_of(seed, history, directory, material, played)
    if error is None:
        return ""
    if is_shortened:
        kind, tries = _kind_of(error), iter(range(TRIES_MAX))

        def fails(shorter: Sequence[say.Command]) -> bool:
            if next(tries, None) is None:
                return False
            found = _error_of(seed, shorter, directory, material, Played())
            return found is not None and _kind_of(found) == kind

        history = shorten(history, fails)
        error = _error_of(seed, history, directory, material, Played()) or error
    lines = "".join(f"    {say.shown(command)},\n" for command in history)
    trace = "".join(traceback.format_exception(error)[-5:]) if not isinstance(error, Wrong) else ""
    return f"seed {seed}: {type(error).__name__}: {str(error)[:TEXT_MAX]}\n{trace}[\n{lines}]"


def _kind_of(error: Exception) -> str:
    """What two errors have in common that come from one fault: the first words, without numbers."""
    return f"{type(error).__name__} {_NUMBERS.sub('', str(error))[:KIND_CHARS]}"


def _error_of(
    seed: int,
    history: Sequence[say.Command],
    directory: Path,
    material: Material,
    played: Played,
) -> Exception | None:
    try:
        play(seed, history, directory / f"world{seed}", material, played=played)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return error
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
