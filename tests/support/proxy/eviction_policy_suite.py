"""The contract of proxy/cache/eviction_policy.py as tests: every eviction policy passes them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.cache.eviction_policy import EvictionPolicy, Use

NOW_S = 1_000_000


@dataclass(slots=True)
class MemoryFile:
    """A file of the cache, as a policy sees it."""

    number: int
    present_bytes: int
    owner: str = ""
    last_use_s: int = 0
    is_held: bool = False

    def is_evictable(self, _now_s: float) -> bool:
        return not self.is_held


FILES = st.lists(
    st.builds(
        MemoryFile,
        st.integers(0, 2**32 - 1),
        st.integers(0, 100),
        st.sampled_from(["", "a", "b", "c"]),
        st.integers(NOW_S - 10_000, NOW_S + 10),
        st.booleans(),
    ),
    max_size=20,
    unique_by=lambda file: file.number,
)
USES = st.lists(st.tuples(st.integers(0, 19), st.sampled_from(Use), st.integers(0, 5)), max_size=30)


class EvictionPolicySuite:
    """A subclass has the fixture ``policy``, a class: it is called for a new one."""

    def test_victims_suffice_and_are_no_more_than_needed(
        self, policy: type[EvictionPolicy]
    ) -> None:
        """They free enough, or all there is; without the last one it would not be enough; none of
        them is held or named twice. To ask changes nothing."""

        @given(FILES, USES, st.integers(-5, 800))
        def check(
            files: list[MemoryFile], uses: list[tuple[int, Use, int]], need_bytes: int
        ) -> None:
            one = policy()
            for at, use, later_s in uses:
                if at < len(files):
                    one.touch(files[at], use, NOW_S + later_s)
            chosen = one.victims(files, need_bytes, NOW_S + 10)
            sizes = [file.present_bytes for file in chosen]
            free = {file.number for file in files if file.is_evictable(NOW_S)}
            assert {file.number for file in chosen} <= free
            assert len({file.number for file in chosen}) == len(chosen)
            assert sum(sizes) >= need_bytes or len(chosen) == len(free)
            assert not chosen or sum(sizes[:-1]) < need_bytes
            assert one.victims(files, need_bytes, NOW_S + 10) == chosen

        check()

    @pytest.mark.parametrize("use", list(Use))
    def test_what_was_just_used_goes_last(self, policy: type[EvictionPolicy], use: Use) -> None:
        """Of two files that differ in nothing else, the one that was used stays."""
        one, files = policy(), [MemoryFile(n, 10, last_use_s=NOW_S - 5) for n in range(2)]
        for file in files:
            one.touch(file, Use.WRITTEN, NOW_S - 5)
        one.touch(files[0], use, NOW_S)
        assert one.victims(files, 1, NOW_S) == [files[1]]
