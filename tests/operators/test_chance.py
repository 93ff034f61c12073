"""Random numbers and texts, as functions of a batch."""

from __future__ import annotations

import pyarrow as pa

from penstock.operators import chance


def test_texts_are_as_long_as_is_asked_and_differ() -> None:
    drawn = chance.randstr(pa.array([0, 3, 40, 40], pa.int16())).to_pylist()
    assert [len(each) for each in drawn] == [0, 3, 40, 40]
    assert all(each.isalnum() for each in drawn[1:])
    assert drawn[2] != drawn[3]


def test_arrays_keep_their_items_in_another_order() -> None:
    given = pa.array([list(range(50)), None, [], [7, None], list(range(50))])
    found = chance.shuffle(given)
    assert found.type == given.type
    both = zip(found.to_pylist(), given.to_pylist(), strict=True)
    for mine, its in both:
        assert mine is its if its is None else sorted(mine, key=str) == sorted(its, key=str)
    assert found[0] != given[0]
    assert found[0] != found[4]
    part = chance.shuffle(given.slice(3)).to_pylist()
    assert sorted(part[0], key=str) == [7, None]
    assert sorted(part[1]) == list(range(50))
