"""The NEXMark generator: a plain-Python judge, its published facts and the source contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from penstock.connectors.contract import Source
from penstock.connectors.nexmark import NexmarkSettings, NexmarkSource
from penstock.connectors.nexmark_columns import KIND_NAMES, SCHEMAS, hash_words
from penstock.connectors.nexmark_kernels import mix
from penstock.errors import InvalidArgument
from penstock.testing.clock import ManualClock
from tests.connectors import nexmark_reference
from tests.connectors.contract import SourceContract, read_through
from tests.connectors.nexmark_reference import Reference

KIND_OF = {"persons": 0, "auctions": 1, "bids": 2}


def rows(source: Source, offset: int, count: int) -> list[dict[str, Any]]:
    """The next rows from an event number on, as dictionaries."""
    out: list[dict[str, Any]] = []
    while len(out) < count:
        answer = source.read(offset, count - len(out))
        out += answer.batch.to_pylist() if answer.batch is not None else []
        offset = answer.next_offset
        if answer.ended:
            break
    return out


def test_the_published_hash_vectors_hold() -> None:
    assert int(mix(np.uint64(0))) & (2**64 - 1) == 0xE220A8397B1DCDAF == nexmark_reference.mix(0)
    assert int(mix(np.uint64(1))) & (2**64 - 1) == 0x910A2DEC89025CC1 == nexmark_reference.mix(1)
    for words, expected in (
        ((42,), 0x57E1FABA65107204),
        ((42, 0, 0), 0xFE15D5002F6EC1DD),
        ((42, 7, 1, 2), 0xE07A9647D88BF459),
    ):
        assert int(hash_words(*words)) == expected == nexmark_reference.h(*words)
    assert int(hash_words(42, 7, 1, 2)) % 1000 == 825
    assert (int(hash_words(42, 7, 1, 2)) >> 11) * 2.0**-53 == 0.876870529690265


@pytest.mark.parametrize("kind", ["persons", "auctions", "bids"])
@pytest.mark.parametrize(
    ("seed", "offset", "settings"),
    [
        (0, 0, {}),
        (1, 0, {"rate": 333.0, "first_event_id": 1}),
        (2**64 - 1, 12_345, {"group": 7}),
        (42, 10**9, {"rate": 1_000_000.0}),
        (5, 10**9 + 17, {"group": 1000, "stream": 3, "base_ms": 0}),
        (7, 10**12 + 3, {"rate": 3700.7}),
    ],
)
def test_every_column_agrees_with_the_plain_generator(
    kind: str, seed: int, offset: int, settings: dict[str, Any]
) -> None:
    judge = Reference(seed, **settings)
    source = NexmarkSource(NexmarkSettings(seed=seed, **settings), kind)  # type: ignore[arg-type]
    expected = []
    number = offset
    while len(expected) < 120:
        if judge.kind(number) == KIND_OF[kind]:
            expected.append(judge.event(number)[1])
        number += 1
    assert rows(source, offset, 120) == expected


@pytest.mark.parametrize("offset", [0, 10**9 - 30])
def test_the_merged_stream_agrees_with_the_plain_generator(offset: int) -> None:
    judge = Reference(9, group=10)
    got = rows(NexmarkSource(NexmarkSettings(seed=9, group=10)), offset, 300)
    for number, row in enumerate(got, offset):
        kind, expected = judge.event(number)
        assert row["etype"] == kind
        assert row["dateTime"] == expected["dateTime"]
        for name in KIND_NAMES:
            assert row[name] == (expected if name == KIND_NAMES[kind] else None)


def test_all_channels_agree_with_the_plain_generator() -> None:
    source = NexmarkSource(NexmarkSettings(seed=3), "bids")
    names, urls = source._axis.channels
    judge = Reference(3)
    for entry in (*range(4), 4, 5, 6, 7, 104, 5_003, 10_003):
        assert urls[entry].as_py().startswith(judge.url(entry))
    ids = [url.partition("channel_id=")[2] for url in urls.to_pylist()]
    assert not any(ids[:4])
    assert 8_800 < sum(1 for text in ids[4:] if text) < 9_200
    assert names[4 + 77].as_py() == "channel-77"
    # 1 mirrored in 32 bits is the most negative integer: its size has no sign.
    assert ids[5] in ("", str(2**31))
    assert {len(ids), len(names)} == {10_004}


def test_first_ids_and_proportions() -> None:
    merged = rows(NexmarkSource(NexmarkSettings(seed=1)), 0, 1000)
    assert merged[0]["person"]["id"] == 1000
    assert [merged[number]["auction"]["id"] for number in (1, 2, 3)] == [1000, 1001, 1002]
    assert merged[50]["person"]["id"] == 1001
    assert merged[51]["auction"]["id"] == 1003
    assert Counter(row["etype"] for row in merged) == {0: 20, 1: 60, 2: 920}


def test_event_12345_at_10_000_a_second() -> None:
    settings = NexmarkSettings(rate=10_000.0)
    row = rows(NexmarkSource(settings, "all", ["dateTime"]), 12_345, 1)[0]
    assert round(row["dateTime"].timestamp() * 1000) == settings.base_ms + 1234


def test_distributions() -> None:
    batch = NexmarkSource(NexmarkSettings(seed=4), "bids").read(10**7, 200_000).batch
    price = np.log10(batch.column("price").to_numpy() / 100)
    assert abs(price.mean() - 3) < 0.02
    assert price.min() < 0.01
    assert price.max() > 5.99
    hot_auction = batch.column("auction").to_numpy() % 100 == 0
    assert 0.49 < hot_auction.mean() < 0.52
    hot_bidder = batch.column("bidder").to_numpy() % 100 == 1
    assert 0.74 < hot_bidder.mean() < 0.77
    lengths = pc.binary_length(batch.column("extra")).to_numpy()
    assert (lengths.min(), lengths.max()) == (54, 81)
    hot = pc.invert(pc.starts_with(batch.column("channel"), "channel-"))
    assert 0.49 < pc.mean(hot).as_py() < 0.51


def test_row_sizes_are_near_their_averages() -> None:
    for kind, average in (("persons", 200), ("auctions", 500)):
        batch = NexmarkSource(NexmarkSettings(seed=4), kind).read(0, 5_000).batch  # type: ignore[arg-type]
        texts = [name for name in batch.schema.names if batch.schema.field(name).type == "string"]
        text_bytes = sum(pc.sum(pc.binary_length(batch.column(name))).as_py() for name in texts)
        fixed_bytes = 8 if kind == "persons" else 48
        assert abs(text_bytes / 5_000 + fixed_bytes - average) < 5


def test_people_and_auctions_are_named_at_most_ten_ids_early() -> None:
    batch = (
        NexmarkSource(NexmarkSettings(seed=8), "bids", ["auction", "bidder", "seq"])
        .read(0, 100_000)
        .batch
    )
    event = batch.column("seq").to_numpy()
    last_person = event // 50
    last_auction = 3 * (event // 50) + 2
    ahead_person = batch.column("bidder").to_numpy() - 1000 - last_person
    ahead_auction = batch.column("auction").to_numpy() - 1000 - last_auction
    assert ahead_person.max() == 10
    assert ahead_auction.max() == 10
    assert ahead_auction.min() >= -100


def test_disorder_changes_the_arrival_and_nothing_else() -> None:
    straight = NexmarkSource(NexmarkSettings(seed=6, events_max=3_000))
    shuffled = NexmarkSource(NexmarkSettings(seed=6, events_max=3_000, group=1_000))
    in_order = read_through(straight, lambda: 1 << 20)
    out_of_order = read_through(shuffled, lambda: 1 << 20)
    assert in_order.rows != out_of_order.rows
    assert Counter(in_order.rows) == Counter(out_of_order.rows)


def test_no_event_comes_behind_the_watermark() -> None:
    source = NexmarkSource(
        NexmarkSettings(seed=6, events_max=5_000, group=128), "all", ["dateTime"]
    )
    offset, watermark_us, ended = source.initial_offset(), 0, False
    late_before = 0
    newest = 0
    while not ended:
        answer = source.read(offset, 37)
        times = answer.batch.column("dateTime").cast("int64").to_numpy()
        assert times.min() >= watermark_us
        late_before += int((times < newest).sum())
        newest = max(newest, int(times.max()))
        offset, watermark_us, ended = answer.next_offset, answer.watermark_us, answer.ended
    assert late_before > 0, "the events came in order: the test proves nothing"


def test_interleaved_parts_do_not_change_the_stream() -> None:
    settings = NexmarkSettings(seed=2, events_max=1_000)
    whole = read_through(NexmarkSource(settings, "bids"), lambda: 1 << 20)
    for parts in (1, 2, 7, 50):
        split = NexmarkSource(settings, "bids").split(parts)
        readings = [read_through(part, lambda: 100) for part in split]
        assert Counter(row for one in readings for row in one.rows) == Counter(whole.rows)
    nested = [inner for part in NexmarkSource(settings, "bids").split(2) for inner in part.split(3)]
    rows_nested = [row for part in nested for row in read_through(part, lambda: 100).rows]
    assert Counter(rows_nested) == Counter(whole.rows)


def test_a_part_without_events_of_its_kind_moves_on() -> None:
    only_people = NexmarkSource(NexmarkSettings(), "bids").split(50)[0]
    answer = only_people.read(0, 10)
    assert answer.batch is None
    assert answer.next_offset > 0
    assert not answer.ended
    assert not answer.idle


def test_disjoint_parts_own_ranges_of_one_time_axis() -> None:
    settings = NexmarkSettings(seed=2, events_max=1_000, rate=1_000.0, parallel="disjoint")
    parts = NexmarkSource(settings, "persons").split(4)
    people = [rows(part, 0, 100) for part in parts]
    ids = [row["id"] for part in people for row in part]
    assert len(set(ids)) == len(ids) == 20
    assert [part[0]["dateTime"] for part in people] == [people[0][0]["dateTime"]] * 4
    # A quarter of the rate: 50 events are 200 ms apart.
    assert [(part[1]["dateTime"] - part[0]["dateTime"]).total_seconds() for part in people] == [
        0.2
    ] * 4
    endless = NexmarkSource(NexmarkSettings(parallel="disjoint"), "persons").split(2)
    assert [rows(part, 0, 1)[0]["id"] for part in endless] == [1000, 1000 + 10**12 // 50]


def test_cloned_parts_repeat_the_ids_with_other_values() -> None:
    settings = NexmarkSettings(seed=2, events_max=1_000, parallel="cloned", first_event_id=1)
    parts = NexmarkSource(settings, "auctions", ["id", "initialBid", "source_id", "seq"]).split(4)
    found = [rows(part, 0, 1_000) for part in parts]
    assert len({tuple(row["id"] for row in part) for part in found}) == 1
    assert len({tuple(row["initialBid"] for row in part) for part in found}) == 4
    assert [part[0]["source_id"] for part in found] == [0, 1, 2, 3]
    judge = Reference(2, rate=2_500, first_event_id=1, stream=3)
    plain = [judge.event(number)[1] for number in range(250) if judge.kind(number) == 1]
    assert [row["initialBid"] for row in found[3]] == [row["initialBid"] for row in plain]


def test_only_the_columns_asked_for_are_built() -> None:
    source = NexmarkSource(NexmarkSettings(), "bids", ["dateTime", "price"])
    assert source.schema.names == ["dateTime", "price"]
    assert source.read(0, 5).batch.schema.equals(source.schema)
    nested = NexmarkSource(NexmarkSettings(seed=1), "all", ["bid.price", "etype", "bid.auction"])
    assert [field.name for field in nested.schema.field("bid").type] == ["price", "auction"]
    row = rows(nested, 4, 1)[0]
    whole = rows(NexmarkSource(NexmarkSettings(seed=1), "bids"), 0, 1)[0]
    assert row == {"bid": {"price": whole["price"], "auction": whole["auction"]}, "etype": 2}
    for wrong in (["nothing"], ["price.cents"], []):
        with pytest.raises(InvalidArgument):
            NexmarkSource(NexmarkSettings(), "bids", wrong)
    with pytest.raises(InvalidArgument):
        NexmarkSource(NexmarkSettings(), "all", ["bid.nothing"])


def test_a_clock_holds_back_what_is_not_due() -> None:
    clock = ManualClock()
    settings = NexmarkSettings(rate=100.0, events_max=250)
    source = NexmarkSource(settings, "all", ["seq"], clock=clock, start_us=clock.now_us())
    assert rows(source, 0, 1)[0]["seq"] == 0
    answer = source.read(1, 1000)
    assert answer.idle
    clock.advance(1.0)
    answer = source.read(1, 1000)
    assert answer.batch.column("seq").to_pylist() == list(range(1, 101))
    clock.advance(60.0)
    answer = source.read(answer.next_offset, 1000)
    assert answer.next_offset == 250
    assert answer.ended


def test_an_endless_source_does_not_end() -> None:
    source = NexmarkSource(NexmarkSettings(), "bids", ["price"])
    offset = source.initial_offset()
    for _ in range(5):
        answer = source.read(offset, 1000)
        assert answer.rows == 1000
        assert not answer.ended
        offset = answer.next_offset


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": -1},
        {"seed": 2**64},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"events_max": -1},
        {"group": 0},
        {"group": 953 * 2},
        {"first_event_id": -1},
        {"parallel": "both"},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        NexmarkSettings(**wrong)
    with pytest.raises(InvalidArgument, match="kind"):
        NexmarkSource(NexmarkSettings(), "people")  # type: ignore[arg-type]


class TestMergedContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: NexmarkSource(NexmarkSettings(seed=1, events_max=173, group=8))


class TestBidsContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: NexmarkSource(NexmarkSettings(seed=1, events_max=173), "bids")


class TestPersonsContract(SourceContract):
    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        return lambda: NexmarkSource(NexmarkSettings(seed=1, events_max=1_500), "persons")


class TestClonedContract(SourceContract):
    splits_into_rows = False

    @pytest.fixture
    def make(self) -> Callable[[], Source]:
        settings = NexmarkSettings(seed=1, events_max=400, parallel="cloned")
        return lambda: NexmarkSource(settings, "auctions")


def test_schemas_are_the_benchmarks() -> None:
    assert [len(schema) for schema in SCHEMAS] == [8, 10, 7]
    assert NexmarkSource(kind="bids").schema.names[:3] == ["auction", "bidder", "price"]
