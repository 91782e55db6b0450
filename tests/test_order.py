"""Every case once per epoch, in an order that depends on seed and epoch."""

from hypothesis import given
from hypothesis import strategies as st

from workup.cases.order import Order


@given(st.integers(1, 300), st.integers(0, 2**32), st.integers(0, 3))
def test_every_case_exactly_once_per_epoch(count: int, seed: int, epoch: int) -> None:
    order = Order(count, seed)
    assert sorted(order[epoch * count + i] for i in range(count)) == list(range(count))


def test_epochs_and_seeds_differ() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        return [Order(1000, seed)[number * 1000 + i] for i in range(1000)]

    assert epoch(1, 0) != epoch(1, 1) != epoch(2, 1)
    assert epoch(1, 0) == epoch(1, 0)


def test_neighbours_are_scattered() -> None:
    """With a step near 1 or the count, an epoch would walk through a file sorted by diagnosis."""
    for seed in range(20):
        order = Order(10_000, seed)
        first = [order[i] for i in range(64)]
        assert max(first) - min(first) > 2_000
