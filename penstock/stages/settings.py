"""How a query runs: the settings that travel inside its program, checked when built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.errors import InvalidConfig
from penstock.names import check_name

MIB = 1 << 20
GIB = 1 << 30

Codec = Literal["none", "lz4", "zstd", "adaptive"]
WatermarkPolicy = Literal["min", "max"]
Guarantee = Literal["exactly-once", "unmarked", "unsafe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one query; every vertex of it sees the same ones."""

    commit_interval_ms: int = 20
    """At the latest this long after its first uncommitted row a vertex appends a marker."""

    trigger_interval_ms: int | None = None
    """Vertices that write the query's output append one marker in each such interval of the wall
    clock, counted from 1970; None: they commit like the others."""

    undelivered_bytes_max: int = 256 * MIB
    """A vertex takes no input while a sink outside the log, or the stage behind it, has more than
    so much of its output still to take."""

    step_rows_max: int = 1 << 18
    """The most input rows of one step: as many as a vertex that is behind processes in about the
    time between two commits."""

    early_append_bytes_max: int = 16 * MIB
    """Output beyond this is appended before its marker, and stays invisible until the marker."""

    checkpoint_interval_commits: int = 500
    """A checkpoint is begun after this many markers: recovery replays at most so many changes."""

    checkpoint_interval_ms: int = 10_000
    """A checkpoint is begun this long after the one before, if there was any marker since."""

    available_now: bool = False
    """The run reads what there is and stops. Event time rises once all of it was read, so which
    rows are late depends on earlier runs alone, and not on how this one is cut into vertices."""

    idle_timeout_ms: int | None = None
    """An input silent for so long no longer holds the watermark back; None: it always does."""

    watermark_policy: WatermarkPolicy = "min"
    """Of watermarks that meet, the one that counts: that of the slowest, or the furthest."""

    late_stream: str | None = None
    """Where rows go that come after their last window closed; None: counted and dropped."""

    dead_letter_stream: str | None = None
    """Where rows go that fail an expression; None: such a row stops the vertex with an error."""

    state_bytes_max: int = 1 * GIB
    """The most memory for the state of one vertex; beyond it a named error, not a dead process."""

    codec: Codec = "lz4"
    """How the p-units of checkpoints and of streams that people named are compressed; what the
    query itself trims soon, rows between its stages and changes of state, is stored as it is.
    `adaptive` chooses for each column of rows, also between stages, and may choose none."""

    codec_interval_ms: int = 4_000
    """How often `adaptive` chooses anew."""

    float_digits: int | None = None
    """Of floats that `adaptive` stores, the digits behind the point that matter; None: all bits."""

    guarantee: Guarantee = "exactly-once"
    """The others keep no state and recover nothing: ceilings to measure with. `unmarked` stores
    rows as usual; `unsafe` only in a log that does not sync, and nothing that a source sent."""

    push_up: bool = True
    """Rows of a source that cannot be read again are persisted behind what makes them fewer or
    smaller; False: just as the source gives them, to measure what that saves."""

    @property
    def recovers(self) -> bool:
        """Whether a vertex goes on after it was lost."""
        return self.guarantee == "exactly-once"

    def __post_init__(self) -> None:
        _check_range("commit_interval_ms", self.commit_interval_ms, 0, 3_600_000)
        _check_range("undelivered_bytes_max", self.undelivered_bytes_max, 1, 1 << 44)
        _check_range("step_rows_max", self.step_rows_max, 1, 1 << 24)
        _check_range("early_append_bytes_max", self.early_append_bytes_max, 1, GIB)
        _check_range("checkpoint_interval_commits", self.checkpoint_interval_commits, 1, 1 << 31)
        _check_range("checkpoint_interval_ms", self.checkpoint_interval_ms, 1, 86_400_000)
        _check_range("codec_interval_ms", self.codec_interval_ms, 1, 86_400_000)
        if self.float_digits is not None:
            _check_range("float_digits", self.float_digits, 0, 15)
        _check_range("state_bytes_max", self.state_bytes_max, MIB, 1 << 44)
        for setting in ("trigger_interval_ms", "idle_timeout_ms"):
            if (length_ms := getattr(self, setting)) is not None:
                _check_range(setting, length_ms, 1, 86_400_000)
        for setting in ("late_stream", "dead_letter_stream"):
            stream = getattr(self, setting)
            if stream is not None:
                check_name(stream, setting)
        if self.late_stream is not None and self.late_stream == self.dead_letter_stream:
            raise InvalidConfig(
                f"late_stream and dead_letter_stream are both {self.late_stream!r}; their rows "
                "have different columns: name two streams",
                setting="late_stream",
                value=self.late_stream,
            )
        for setting in ("available_now", "push_up"):
            if type(value := getattr(self, setting)) is not bool:
                raise InvalidConfig(
                    f"{setting} is {value!r:.200}; it is True or False",
                    setting=setting,
                    value=repr(value)[:200],
                )
        _check_choice("codec", self.codec, get_args(Codec))
        _check_choice("watermark_policy", self.watermark_policy, get_args(WatermarkPolicy))
        _check_choice("guarantee", self.guarantee, get_args(Guarantee))


def _check_choice(setting: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidConfig(
            f"{setting} is {value!r:.200}; it is one of {', '.join(known)}",
            setting=setting,
            value=str(value)[:200],
        )


def _check_range(setting: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidConfig(
            f"{setting} is {value!r:.200}; it is a whole number from {least:,} to {most:,}",
            setting=setting,
            value=repr(value)[:200],
            least=least,
            most=most,
        )
