"""Budgets: what may be spent is a share of what was earned, and S3's is divided by the nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.peers.client.hedge_budget import (
    HEDGE_BURST_BYTES,
    HEDGE_SHARE,
    STORE_BURST_BYTES,
    STORE_SHARE,
    HedgeBudget,
)

MIB = 1 << 20
steps = st.lists(
    st.tuples(st.sampled_from(["got", "hedge", "store"]), st.integers(1, 64 * MIB)), max_size=200
)


@given(st.integers(1, 10_000), steps)
def test_never_more_than_burst_and_share(nodes: int, history: list[tuple[str, int]]) -> None:
    """Whatever the order, all nodes together turn to S3 for no more than the burst and the share
    of what one node got, and hedges have their own limit."""
    budgets, got, hedged, stored = HedgeBudget(nodes=nodes), 0, 0, 0
    for what, size_bytes in history:
        if what == "got":
            budgets.got(size_bytes)
            got += size_bytes
        elif what == "hedge":
            hedged += size_bytes * budgets.hedge(size_bytes)
        else:
            stored += size_bytes * budgets.store(size_bytes)
    assert hedged <= HEDGE_BURST_BYTES + HEDGE_SHARE * got + 1
    assert nodes * stored <= STORE_BURST_BYTES + STORE_SHARE * got + nodes


def test_turning_to_the_store_is_earned() -> None:
    """A unit may be read early after 50 times as much came from peers, in a cluster of 8 after 400
    times as much, and in one of 1,000 never."""
    for nodes, times in ((1, 50), (8, 400)):
        budgets = HedgeBudget(nodes=nodes)
        assert not budgets.store(8 * MIB)
        budgets.got(times * 8 * MIB - MIB)
        assert not budgets.store(8 * MIB)
        budgets.got(2 * MIB)
        assert budgets.store(8 * MIB)
    large = HedgeBudget(nodes=1000)
    large.got(1 << 40)
    assert not large.store(8 * MIB)


def test_a_refused_hedge_costs_nothing() -> None:
    """What was spent on a peer that sent nothing comes back."""
    budgets = HedgeBudget()
    for _ in range(100):
        assert budgets.hedge(HEDGE_BURST_BYTES)
        assert not budgets.hedge(1)
        budgets.hedge_refused(HEDGE_BURST_BYTES)
