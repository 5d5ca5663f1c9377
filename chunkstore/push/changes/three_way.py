"""Three-way merge by trees: brings what one side changed since a base into the other side.

It reads only directories that both sides changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.push.changes.change import shown
from lodefs.chunkstore.push.changes.overlay import (
    Item,
    Names,
    Overlay,
    TreeReader,
    children_of,
    is_directory,
    is_equal,
)

NAMED_MAX = 20  # how many conflicts an error lists

Choices = Mapping[Names, bool]  # by path: True takes our side, False theirs
IsProven = Callable[[TreeEntry, TreeEntry], bool]


def believed(our: TreeEntry, their: TreeEntry) -> bool:  # noqa: ARG001
    """Implements IsProven: believes equal digests of both sides."""
    return True


@dataclass(slots=True)
class Merge:
    """``taken``: what to put on their side, by path (None: remove). ``conflicts``: paths that both
    sides changed differently, with the item of our side."""

    taken: list[tuple[Names, Item | None]] = field(default_factory=list)
    conflicts: dict[Names, Item | None] = field(default_factory=dict)

    def decide(self, choices: Choices) -> None:
        """Decides conflicts by the choice for the path, or for the nearest directory above it."""
        for names in list(self.conflicts):
            above = (names[:size] for size in range(len(names), -1, -1))
            nearest = next((path for path in above if path in choices), None)
            if nearest is None:
                continue
            our = self.conflicts.pop(names)
            if choices[nearest]:
                self.taken.append((names, our))

    def check(self, kind: type[LodefsError], way_out: str = "") -> None:
        """Raises ``kind``, which names the conflicting paths, if there are any."""
        if self.conflicts:
            named = ", ".join(sorted(map(shown, self.conflicts))[:NAMED_MAX])
            more = len(self.conflicts) - NAMED_MAX
            more_text = f" and {more:,} more" if more > 0 else ""
            raise kind(f"both sides changed {named}{more_text}: nothing was committed{way_out}")

    def into(self, overlay: Overlay) -> None:
        """Applies ``taken`` to an overlay of their root."""
        for names, item in self.taken:
            if item is None:
                overlay.remove(names)
            else:
                overlay.put(names, item)


def merge(
    trees: TreeReader,
    base: Item | None,
    ours: Item,
    theirs: Item,
    is_proven: IsProven = believed,
) -> Merge:
    """Merges root directories. A path that both sides changed alike is no conflict: ours is taken,
    unless ``is_proven`` says that theirs leads to the same bytes, since a digest is only a claim.
    Raises what read_tree raises."""
    found = Merge()
    stack: list[tuple[Names, Item | None, Item | None, Item | None]] = [((), base, ours, theirs)]
    while stack:
        names, was, our, their = stack.pop()
        if _is_untouched(was, our):
            continue
        if is_equal(our, their):
            if (
                isinstance(our, TreeEntry)
                and isinstance(their, TreeEntry)
                and not is_proven(our, their)
            ):
                found.taken.append((names, our))
            continue
        if is_equal(was, our):
            continue
        if is_equal(was, their):
            found.taken.append((names, our))
        elif is_directory(our) and is_directory(their):
            old, new, other = (children_of(trees, item) for item in (was, our, their))
            stack += [
                ((*names, name), old.get(name), new.get(name), other.get(name))
                for name in new.keys() | old.keys()  # a name that only they have stays
            ]
        else:
            found.conflicts[names] = our
    return found


def _is_untouched(was: Item | None, our: Item | None) -> bool:
    """Whether our side has the very same entry as the base."""
    if not isinstance(was, TreeEntry) or not isinstance(our, TreeEntry):
        return was is our
    is_there_too = (was.size_bytes, was.segments) == (our.size_bytes, our.segments)
    return is_there_too and is_equal(was, our)
