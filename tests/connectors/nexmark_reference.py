"""NEXMark events one by one in plain Python: the compiled generator's judge, sharing no code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

M = (1 << 64) - 1
FIRST = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"]
FIRST += ["Walter"]
LAST = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
CITY = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond"]
CITY += ["Seattle", "Kent", "Cheyenne"]
STATE = ["AZ", "CA", "ID", "OR", "WA", "WY"]
HOT = ["Google", "Facebook", "Baidu", "Apple"]
URL_STREAM = 4294967296


def mix(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & M
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


def h(*words: int) -> int:
    s = 0
    for word in words:
        s = mix(s ^ mix(word))
    return s


class Reference:
    """One generator; `event(n)` is the n-th event to arrive, as (kind, row)."""

    def __init__(
        self,
        seed: int,
        rate: float = 10_000,
        group: int = 1,
        base_ms: int = 1_600_002_000_000,
        first_event_id: int = 0,
        stream: int = 0,
    ) -> None:
        self.seed, self.group, self.stream = seed, group, stream
        self.base_ms, self.first_event_id = base_ms, first_event_id
        self.d = 1_000_000 / rate

    def adjusted(self, n: int) -> int:
        return n // self.group * self.group + 953 * n % self.group

    def ts(self, k: int) -> int:
        return self.base_ms + int(k * self.d) // 1000

    def kind(self, n: int) -> int:
        rest = (self.first_event_id + self.adjusted(n)) % 50
        return 0 if rest == 0 else 1 if rest <= 3 else 2

    def event(self, n: int) -> tuple[int, dict[str, Any]]:
        k = self.adjusted(n)
        e = self.first_event_id + k
        kind = self.kind(n)
        return kind, (self.person, self.auction, self.bid)[kind](e, k)

    def r(self, bound: int, e: int, f: int) -> int:
        return h(self.seed, self.stream, e, f) % bound

    def price(self, e: int, f: int) -> int:
        u = (h(self.seed, self.stream, e, f) >> 11) * 2.0**-53
        return round(100 * 10.0 ** (6 * u))

    def text(self, longest: int, special: str, *words: int) -> str:
        length = 3 + h(*words) % (longest - 3)
        out = ""
        for i in range(length):
            lane = (h(*words, i // 4) >> (16 * (i % 4))) % 65536
            drawn = lane * 338 // 65536
            out += special if drawn < 26 else chr(ord("a") + drawn % 26)
        return out.strip(" ")

    def padding(self, average: int, counted: int, e: int, f: int) -> str:
        d = average - counted
        if d < 0:
            return ""
        q = round(0.2 * d)
        number = h(self.seed, self.stream, e, f)
        length = d - q + number % (2 * q) if q else d
        lanes = [
            (h(self.seed, self.stream, e, f, i // 4) >> (16 * (i % 4))) % 65536
            for i in range(length)
        ]
        return "".join(chr(ord("a") + lane * 26 // 65536) for lane in lanes)

    def moment(self, ms: int) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)

    def last_person(self, e: int) -> int:
        return e // 50

    def last_auction(self, e: int) -> int:
        epoch, off = divmod(e, 50)
        if off == 0:
            return 3 * epoch - 1
        return 3 * epoch + 2 if off >= 4 else 3 * epoch + off - 1

    def active_person(self, e: int, f: int) -> int:
        people = self.last_person(e) + 1
        active = min(people, 1000)
        return people - active + self.r(active + 10, e, f)

    def person(self, e: int, k: int) -> dict[str, Any]:
        where = (self.seed, self.stream, e)
        card = h(*where, 5)
        groups = [f"{(card >> (16 * i)) % 65536 * 10000 // 65536:04d}" for i in range(4)]
        row = {
            "id": 1000 + self.last_person(e),
            "name": FIRST[self.r(11, e, 1)] + " " + LAST[self.r(9, e, 2)],
            "emailAddress": f"{self.text(7, ' ', *where, 3)}@{self.text(5, ' ', *where, 4)}.com",
            "creditCard": " ".join(groups),
            "city": CITY[self.r(10, e, 6)],
            "state": STATE[self.r(6, e, 7)],
            "dateTime": self.moment(self.ts(k)),
        }
        texts = ("name", "emailAddress", "creditCard", "city", "state")
        counted = 8 + sum(len(str(row[name])) for name in texts)
        return row | {"extra": self.padding(200, counted, e, 8)}

    def auction(self, e: int, k: int) -> dict[str, Any]:
        hot = self.r(4, e, 1) > 0
        seller = self.last_person(e) // 100 * 100 if hot else self.active_person(e, 2)
        item = self.text(20, " ", self.seed, self.stream, e, 6)
        description = self.text(100, " ", self.seed, self.stream, e, 7)
        life = self.ts(k + 1666) - self.ts(k)
        initial = self.price(e, 4)
        return {
            "id": 1000 + self.last_auction(e),
            "itemName": item,
            "description": description,
            "initialBid": initial,
            "reserve": initial + self.price(e, 5),
            "dateTime": self.moment(self.ts(k)),
            "expires": self.moment(self.ts(k) + 1 + self.r(max(2 * life, 1), e, 8)),
            "seller": 1000 + seller,
            "category": 10 + self.r(5, e, 3),
            "extra": self.padding(500, 8 + len(item) + len(description) + 40, e, 9),
        }

    def channel(self, e: int) -> tuple[str, str]:
        if self.r(2, e, 6) > 0:
            entry = self.r(4, e, 7)
            return HOT[entry], self.url(entry)
        k = self.r(10_000, e, 7)
        url = self.url(4 + k)
        if h(self.seed, URL_STREAM, 4 + k, 4) % 10 > 0:
            mirrored = int(f"{k:032b}"[::-1], 2)
            url += f"&channel_id={abs(mirrored - (1 << 32) if mirrored >> 31 else mirrored)}"
        return f"channel-{k}", url

    def url(self, entry: int) -> str:
        parts = [self.text(5, "_", self.seed, URL_STREAM, entry, f) for f in (1, 2, 3)]
        return "https://www.nexmark.com/" + "/".join(parts) + "/item.htm?query=1"

    def bid(self, e: int, k: int) -> dict[str, Any]:
        newest = self.last_auction(e)
        if self.r(2, e, 1) > 0:
            auction = newest // 100 * 100
        else:
            oldest = max(newest - 100, 0)
            auction = oldest + self.r(newest + 10 - oldest + 1, e, 2)
        hot = self.r(4, e, 3) > 0
        bidder = self.last_person(e) // 100 * 100 + 1 if hot else self.active_person(e, 4)
        channel, url = self.channel(e)
        return {
            "auction": 1000 + auction,
            "bidder": 1000 + bidder,
            "price": self.price(e, 5),
            "channel": channel,
            "url": url,
            "dateTime": self.moment(self.ts(k)),
            "extra": self.padding(100, 32, e, 8),
        }
