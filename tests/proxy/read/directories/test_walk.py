"""The policy for walks: what a program will list next is loaded ahead, and not much else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.read.directories.walk import DIRECTORIES_MAX, FRONTIER_MAX, Walk

Tree = dict[int, list[int]]  # the directories in each directory


def tree_of(count: int, seed: int, depth: int) -> Tree:
    """A tree of directories; of small ``depth`` it is wide."""
    chance = random.Random(seed)
    tree: Tree = {1: []}
    levels = {1: 0}
    while len(tree) < count:
        parent = chance.choice(list(tree)[-100:])
        if levels[parent] < depth:
            child = len(tree) + 1
            tree[parent].append(child)
            tree[child] = []
            levels[child] = levels[parent] + 1
        else:
            parent = 1
            child = len(tree) + 1
            tree[1].append(child)
            tree[child] = []
            levels[child] = 1
    return tree


def depth_first(tree: Tree) -> list[int]:
    order, stack = [], [1]
    while stack:
        order.append(stack.pop())
        stack += reversed(tree[order[-1]])
    return order


def by_level(tree: Tree) -> list[int]:
    order = [1]
    for ino in order:
        order += tree[ino]
    return order


def backwards(tree: Tree) -> list[int]:
    order, stack = [], [1]
    while stack:
        order.append(stack.pop())
        stack += tree[order[-1]]
    return order


def misses(tree: Tree, order: list[int]) -> tuple[int, int]:
    """How often a program that lists in this order has to wait, and how much was loaded."""
    walk, loaded, count = Walk(), set[int](), 0
    parents = {child: parent for parent, children in tree.items() for child in children}
    for ino in order:
        if ino in loaded:
            continue
        count += 1
        left = walk.miss(ino, parents.get(ino, ino)) - 1
        loaded.add(ino)
        walk.loaded(ino, tree[ino])
        while left > 0 and (some := walk.take(min(left, 64))):
            left -= len(some)
            loaded.update(some)
            for one in reversed(some):
                walk.loaded(one, tree[one])
    return count, len(loaded)


@pytest.mark.parametrize("depth", [1, 3, 50])
@pytest.mark.parametrize("order_of", [depth_first, by_level, backwards])
def test_walks_of_any_shape_miss_seldom(depth: int, order_of: object) -> None:
    """A walk through 5,000 directories waits for few of them, whatever its order."""
    tree = tree_of(5000, 1, depth)
    count, _ = misses(tree, order_of(tree))  # type: ignore[operator]
    assert count <= 100


def test_a_path_that_is_looked_up_loads_nothing_else() -> None:
    """One directory after the other, each in the one before: no walk."""
    tree = {n: [n + 1, 100 + n] for n in range(1, 10)} | {n: [] for n in range(10, 120)}
    assert misses(tree, list(range(1, 11))) == (10, 10)


@given(st.integers(0, 1000), st.integers(2, 300), st.integers(1, 20), st.data())
def test_not_much_is_loaded_in_vain(seed: int, count: int, depth: int, data: st.DataObject) -> None:
    """Whatever is listed, at most about five times as many directories are loaded."""
    tree = tree_of(count, seed, depth)
    order = depth_first(tree)
    asked = order[: data.draw(st.integers(1, len(order)))]
    _, loaded = misses(tree, asked)
    assert loaded <= 6 * len(asked)


def test_a_miss_elsewhere_begins_anew() -> None:
    """Steps grow up to a limit; a directory that the walk has not seen ends that."""
    walk = Walk()
    walk.loaded(1, range(2, 50))
    walk.miss(1, 1)
    steps = [walk.miss(ino, 1) for ino in range(2, 12)]
    assert steps[:4] == [1, 4, 16, 64]
    assert steps[-1] == DIRECTORIES_MAX
    assert walk.miss(999, 1) == 1


def test_the_frontier_is_bounded() -> None:
    """A directory with a million directories does not take memory for all of them."""
    walk = Walk()
    walk.loaded(1, range(2, FRONTIER_MAX * 2))
    assert 2 in walk
    assert len(walk.take(FRONTIER_MAX * 2)) == FRONTIER_MAX
