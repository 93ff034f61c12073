"""The values of NEXMark events: compiled pure functions of (seed, stream, event, field).

    mix(x)       one round of SplitMix64
    H(a, b, …)   s = 0; for each word: s = mix(s ^ mix(word))
    key          H(seed, stream, event): computed once per event and shared by its columns
    field f      H(seed, stream, event, f) = mix(key ^ mix(f))

A text takes its length from its field's number and its characters from the numbers
H(seed, stream, event, field, block), four characters of 16 bits from each block, lowest bits first.
Only integer and correctly rounded float operations are used: every machine makes the same events.
"""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
FACTOR_2 = np.uint64(0x94D049BB133111EB)
S11, S16, S27, S30, S31, S32, S39, S46, S48 = (
    np.uint64(bits) for bits in (11, 16, 27, 30, 31, 32, 39, 46, 48)
)
ZERO = np.uint64(0)
LANE = np.uint64(0xFFFF)
LETTERS = np.uint64(26)
LETTERS_AND_SPECIALS = np.uint64(13 * 26)  # 1 in 13 is the special character
TEN_THOUSAND = np.uint64(10_000)
LAST_39_BITS = np.uint64((1 << 39) - 1)
SEVEN_BITS = np.uint64(127)

EVENTS_PER_EPOCH = 50
AUCTIONS_PER_EPOCH = 3
FIRST_ID = 1000  # of auctions and of people
HOT_BATCH = 100
IN_FLIGHT_AUCTIONS = 100
ACTIVE_PEOPLE = 1000
ID_LEAD = 10
HOT_AUCTION_RATIO = np.uint64(2)
HOT_SELLER_RATIO = np.uint64(4)
HOT_BIDDER_RATIO = np.uint64(4)
ANY_KIND = -1
TEXT_LENGTH_MIN = 3
SPACE = np.uint8(ord(" "))
LETTER_A = np.uint8(ord("a"))
DIGIT_0 = np.uint8(ord("0"))


def _powers_of_ten(step: Decimal) -> np.ndarray:
    """Return 10 ** (6 * i * step) for i below 128, each correctly rounded."""
    with localcontext() as context:
        context.prec = 40
        return np.array([float(Decimal(10) ** (6 * number * step)) for number in range(128)])


# 10 ** (6 u) as a product: the first and the next seven bits of u by table, the rest by a series.
COARSE_POWERS = _powers_of_ten(1 / Decimal(128))
FINE_POWERS = _powers_of_ten(1 / Decimal(128) ** 2)
SERIES_SCALE = float(6 * Decimal(10).ln()) * 2.0**-53


@njit(cache=True)
def mix(word):  # type: ignore[no-untyped-def]
    z = word + GOLDEN
    z = (z ^ (z >> S30)) * FACTOR_1
    z = (z ^ (z >> S27)) * FACTOR_2
    return z ^ (z >> S31)


@njit(cache=True)
def field_number(key, field):  # type: ignore[no-untyped-def]
    """Extend a hash by one more word."""
    return mix(np.uint64(key) ^ mix(np.uint64(field)))


@njit(cache=True)
def event_keys(prefix, event_ids):  # type: ignore[no-untyped-def]
    keys = np.empty(event_ids.size, np.uint64)
    for row in range(event_ids.size):
        keys[row] = field_number(prefix, event_ids[row])
    return keys


@njit(cache=True)
def take_events(number, stride, number_end, rows_max, group, first_event_id, kind):  # type: ignore[no-untyped-def]
    """Pick the next events of a kind: their numbers, adjusted numbers and the number to go on.

    `group` events arrive shuffled among themselves: event n carries the time and id of adjusted n.
    """
    numbers = np.empty(rows_max, np.int64)
    adjusted = np.empty(rows_max, np.int64)
    rows = 0
    while number < number_end and rows < rows_max:
        place = number
        if group > 1:
            rest = number % group
            place = number - rest + 953 * rest % group
        slot = (first_event_id + place) % EVENTS_PER_EPOCH
        found = 0 if slot == 0 else 1 if slot <= AUCTIONS_PER_EPOCH else 2
        if kind in (ANY_KIND, found):
            numbers[rows] = number
            adjusted[rows] = place
            rows += 1
        number += stride
    return numbers[:rows], adjusted[:rows], number


@njit(cache=True)
def kinds(event_ids):  # type: ignore[no-untyped-def]
    found = np.empty(event_ids.size, np.int32)
    for row in range(event_ids.size):
        slot = event_ids[row] % EVENTS_PER_EPOCH
        found[row] = 0 if slot == 0 else 1 if slot <= AUCTIONS_PER_EPOCH else 2
    return found


@njit(cache=True)
def event_time_ms(place, base_ms, delay_us):  # type: ignore[no-untyped-def]
    return base_ms + np.int64(place * delay_us) // 1000


@njit(cache=True)
def event_times_us(places, base_ms, delay_us):  # type: ignore[no-untyped-def]
    times = np.empty(places.size, np.int64)
    for row in range(places.size):
        times[row] = event_time_ms(places[row], base_ms, delay_us) * 1000
    return times


@njit(cache=True)
def last_auction(event_id):  # type: ignore[no-untyped-def]
    epoch, slot = event_id // EVENTS_PER_EPOCH, event_id % EVENTS_PER_EPOCH
    return AUCTIONS_PER_EPOCH * epoch + min(slot, AUCTIONS_PER_EPOCH) - 1


@njit(cache=True)
def active_person(number, event_id):  # type: ignore[no-untyped-def]
    """Name one of the newest people, or one of the ten who come next."""
    people = event_id // EVENTS_PER_EPOCH + 1
    active = min(people, ACTIVE_PEOPLE)
    return people - active + np.int64(number % np.uint64(active + ID_LEAD))


@njit(cache=True)
def person_ids(event_ids):  # type: ignore[no-untyped-def]
    return FIRST_ID + event_ids // EVENTS_PER_EPOCH


@njit(cache=True)
def auction_ids(event_ids):  # type: ignore[no-untyped-def]
    ids = np.empty(event_ids.size, np.int64)
    for row in range(event_ids.size):
        ids[row] = FIRST_ID + last_auction(event_ids[row])
    return ids


@njit(cache=True)
def sellers(keys, event_ids, hot_field, cold_field):  # type: ignore[no-untyped-def]
    people = np.empty(event_ids.size, np.int64)
    for row in range(event_ids.size):
        if field_number(keys[row], hot_field) % HOT_SELLER_RATIO > ZERO:
            person = event_ids[row] // EVENTS_PER_EPOCH // HOT_BATCH * HOT_BATCH
        else:
            person = active_person(field_number(keys[row], cold_field), event_ids[row])
        people[row] = FIRST_ID + person
    return people


@njit(cache=True)
def bidders(keys, event_ids, hot_field, cold_field):  # type: ignore[no-untyped-def]
    people = np.empty(event_ids.size, np.int64)
    for row in range(event_ids.size):
        if field_number(keys[row], hot_field) % HOT_BIDDER_RATIO > ZERO:
            person = event_ids[row] // EVENTS_PER_EPOCH // HOT_BATCH * HOT_BATCH + 1
        else:
            person = active_person(field_number(keys[row], cold_field), event_ids[row])
        people[row] = FIRST_ID + person
    return people


@njit(cache=True)
def bid_auctions(keys, event_ids, hot_field, cold_field):  # type: ignore[no-untyped-def]
    auctions = np.empty(event_ids.size, np.int64)
    for row in range(event_ids.size):
        newest = last_auction(event_ids[row])
        if field_number(keys[row], hot_field) % HOT_AUCTION_RATIO > ZERO:
            auction = newest // HOT_BATCH * HOT_BATCH
        else:
            oldest = max(newest - IN_FLIGHT_AUCTIONS, 0)
            span = np.uint64(newest + ID_LEAD - oldest + 1)
            auction = oldest + np.int64(field_number(keys[row], cold_field) % span)
        auctions[row] = FIRST_ID + auction
    return auctions


@njit(cache=True)
def prices(keys, field):  # type: ignore[no-untyped-def]
    """Draw log-uniform prices: round(100 * 10 ** (6 u)) cents."""
    cents = np.empty(keys.size, np.int64)
    for row in range(keys.size):
        bits = field_number(keys[row], field) >> S11
        z = np.float64(bits & LAST_39_BITS) * SERIES_SCALE
        series = 1.0 + z * (1.0 + z * (0.5 + z * (1.0 / 6.0 + z / 24.0)))
        power = COARSE_POWERS[bits >> S46] * FINE_POWERS[(bits >> S39) & SEVEN_BITS] * series
        cents[row] = np.int64(np.floor(100.0 * power + 0.5))
    return cents


@njit(cache=True)
def choices(keys, field, count):  # type: ignore[no-untyped-def]
    """Draw uniform numbers below a count."""
    chosen = np.empty(keys.size, np.int64)
    for row in range(keys.size):
        chosen[row] = np.int64(field_number(keys[row], field) % np.uint64(count))
    return chosen


@njit(cache=True)
def channels(keys, hot_field, field, hot_count, cold_count):  # type: ignore[no-untyped-def]
    """Draw rows of the channel table: the hot ones stand before the cold ones."""
    chosen = np.empty(keys.size, np.int64)
    for row in range(keys.size):
        number = field_number(keys[row], field)
        if field_number(keys[row], hot_field) % np.uint64(2) > ZERO:
            chosen[row] = np.int64(number % np.uint64(hot_count))
        else:
            chosen[row] = hot_count + np.int64(number % np.uint64(cold_count))
    return chosen


@njit(cache=True)
def expiries_us(keys, field, places, base_ms, delay_us, life_events):  # type: ignore[no-untyped-def]
    times = np.empty(keys.size, np.int64)
    for row in range(keys.size):
        now_ms = event_time_ms(places[row], base_ms, delay_us)
        life_ms = event_time_ms(places[row] + life_events, base_ms, delay_us) - now_ms
        span = np.uint64(max(2 * life_ms, 1))
        extra_ms = np.int64(field_number(keys[row], field) % span)
        times[row] = (now_ms + 1 + extra_ms) * 1000
    return times


@njit(cache=True)
def put_words(data, at, number, length_max, special):  # type: ignore[no-untyped-def]
    """Write a text of 3 to length_max - 1 characters, trimmed of spaces; return where it ends.

    Whole blocks of four are written, so up to three bytes behind the text are touched.
    """
    length = TEXT_LENGTH_MIN + np.int64(number % np.uint64(length_max - TEXT_LENGTH_MIN))
    for block in range((length + 3) // 4):
        word = field_number(number, block)
        for lane in range(4):
            drawn = ((word & LANE) * LETTERS_AND_SPECIALS) >> S16
            letter = LETTER_A + np.uint8(drawn % LETTERS)
            data[at + 4 * block + lane] = special if drawn < LETTERS else letter
            word >>= S16
    begin, end = at, at + length
    while end > begin and data[end - 1] == SPACE:
        end -= 1
    while begin < end and data[begin] == SPACE:
        begin += 1
    for index in range(begin, end):
        data[at + index - begin] = data[index]
    return at + end - begin


@njit(cache=True)
def put_bytes(data, at, source):  # type: ignore[no-untyped-def]
    for index in range(source.size):
        data[at + index] = source[index]
    return at + source.size


@njit(cache=True)
def words(keys, field, length_max):  # type: ignore[no-untyped-def]
    """Return the texts of a field as one run of bytes and the offsets that cut it."""
    data = np.empty(keys.size * length_max + 8, np.uint8)
    offsets = np.empty(keys.size + 1, np.int32)
    offsets[0] = at = 0
    for row in range(keys.size):
        at = put_words(data, at, field_number(keys[row], field), length_max, SPACE)
        offsets[row + 1] = at
    return data[:at], offsets


@njit(cache=True)
def emails(keys, user_field, domain_field, user_max, domain_max, at_sign, ending):  # type: ignore[no-untyped-def]
    row_max = user_max + domain_max + at_sign.size + ending.size
    data = np.empty(keys.size * row_max + 8, np.uint8)
    offsets = np.empty(keys.size + 1, np.int32)
    offsets[0] = at = 0
    for row in range(keys.size):
        at = put_words(data, at, field_number(keys[row], user_field), user_max, SPACE)
        at = put_bytes(data, at, at_sign)
        at = put_words(data, at, field_number(keys[row], domain_field), domain_max, SPACE)
        at = put_bytes(data, at, ending)
        offsets[row + 1] = at
    return data[:at], offsets


@njit(cache=True)
def card_numbers(keys, field):  # type: ignore[no-untyped-def]
    """Return four groups of four digits per row, 19 characters each."""
    data = np.full(keys.size * 19, SPACE, np.uint8)
    for row in range(keys.size):
        number = field_number(keys[row], field)
        for group in range(4):
            digits = np.int64(((number & LANE) * TEN_THOUSAND) >> S16)
            for place in range(3, -1, -1):
                data[row * 19 + group * 5 + place] = DIGIT_0 + np.uint8(digits % 10)
                digits //= 10
            number >>= S16
    return data, np.arange(0, keys.size * 19 + 1, 19).astype(np.int32)


@njit(cache=True)
def paddings(keys, field, counted, average, length_max):  # type: ignore[no-untyped-def]
    """Return letters that bring each row near its average size, given the bytes counted so far."""
    data = np.empty(keys.size * length_max + 8, np.uint8)
    offsets = np.empty(keys.size + 1, np.int32)
    offsets[0] = at = 0
    for row in range(keys.size):
        number = field_number(keys[row], field)
        missing = max(average - counted[row], 0)
        spread = (2 * missing + 5) // 10
        length = missing
        if spread > 0:
            length = missing - spread + np.int64(number % np.uint64(2 * spread))
        for block in range((length + 3) // 4):
            word = field_number(number, block)
            for lane in range(4):
                letter = ((word & LANE) * LETTERS) >> S16
                data[at + 4 * block + lane] = LETTER_A + np.uint8(letter)
                word >>= S16
        at += length
        offsets[row + 1] = at
    return data[:at], offsets


@njit(cache=True)
def addresses(keys, fields, part_max, special, head, slash, tail):  # type: ignore[no-untyped-def]
    """Return one web address per key: head, the path parts of `fields`, tail."""
    row_max = head.size + tail.size + fields.size * (part_max + slash.size)
    data = np.empty(keys.size * row_max + 8, np.uint8)
    offsets = np.empty(keys.size + 1, np.int32)
    offsets[0] = at = 0
    for row in range(keys.size):
        at = put_bytes(data, at, head)
        for index in range(fields.size):
            if index > 0:
                at = put_bytes(data, at, slash)
            number = field_number(keys[row], fields[index])
            at = put_words(data, at, number, part_max, special)
        at = put_bytes(data, at, tail)
        offsets[row + 1] = at
    return data[:at], offsets
