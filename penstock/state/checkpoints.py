"""The checkpoint store: a vertex's states, each checkpoint named by the marker it belongs to.

    <root>/<vertex>/<position>_<attempt>/
        <state>.units     the state's p-units, one after the other, each on a 64-byte boundary
        manifest.json     written last: what the files are, how long, with which checksums

A checkpoint holds complete pictures, or what has changed since an earlier one, which its manifest
names with the checksum of that one's manifest. So the newest of a chain stands for all before it:
a picture, and changes of which each begins where the one before it ends.

A checkpoint exists once its manifest does. The manifest is written under another name, synced and
renamed when all files and their folder are durable, so a crash at any point leaves a checkpoint
whole or not there. `attempt` tells apart two instances that write at the same marker: neither
touches the other's files.

What is read back is not trusted: names must match, lengths are bounded, checksums must fit, and
nothing is removed but what a manifest names.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from penstock.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    CheckpointVersionUnsupported,
    InvalidName,
    PUnitError,
)
from penstock.json_codec import canonical_json, parse, spaced_json
from penstock.log import punit
from penstock.names import check_any_name, check_name
from penstock.state.checkpoint_files import (
    CheckpointFiles,
    FilePath,
    LocalFiles,
    Part,
)
from penstock.state.contract import State

FORMAT = "penstock-checkpoint"
VERSION = 3
VERSIONS_READ = (2, 3)  # those of version 2 are all complete pictures
MANIFEST = "manifest.json"
MANIFEST_UNFINISHED = "manifest.unfinished"
MANIFEST_BYTES_MAX = 64 << 20
# What keeps a file from being read for now, whatever its bytes are.
PASSING = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EACCES,
        errno.EPERM,
    }
)
ATTEMPTS_MAX = 10_000
UNIT_ALIGNMENT_BYTES = 64
READERS = 4  # threads that decode a checkpoint: nearly all of it is outside Python's lock
READ_ALONE_BYTES = 1 << 20  # less is decoded before threads have begun

_FOLDER_NAME = re.compile(r"([0-9]{20})_([0-9]{4})")
_FILE_NAME = re.compile(r"([A-Za-z0-9_]{1,64})\.units")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """The name of one checkpoint; of one vertex, the newest is the greatest."""

    vertex: str
    position: int  # of the marker whose state this is
    attempt: int = 0

    @property
    def path(self) -> FilePath:
        return (self.vertex, f"{self.position:020d}_{self.attempt:04d}")

    def __str__(self) -> str:
        return "/".join(self.path)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint read back and verified: the pictures, and the changes to apply onto them."""

    id: CheckpointId
    meta: dict[str, Any]
    states: dict[str, list[pa.RecordBatch]]
    changes: tuple[dict[str, list[pa.RecordBatch]], ...] = ()

    def restore(self, name: str, state: State) -> None:
        """Let a state become what the checkpoint has under its name; empty if nothing."""
        state.restore(self.states.get(name, []))
        for part in self.changes:
            for batch in part.get(name, []):
                state.apply_changes(batch)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Where one p-unit lies in its file."""

    at: int
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Link:
    """One checkpoint of a chain, as its manifest describes it."""

    id: CheckpointId
    meta: dict[str, Any]
    files: dict[str, list[_Unit]]
    since: CheckpointId | None  # None: it holds complete pictures
    since_checksum: str
    checksum: str  # of the manifest

    @property
    def bytes(self) -> int:
        """The length of all its files."""
        return sum(unit.size for units in self.files.values() for unit in units)


# The store has a method `list`, which hides the type of that name inside its class.
Ids = list[CheckpointId]
Problems = dict[CheckpointId, CheckpointError]
UnitNotes = list[dict[str, Any]]
Units = list[_Unit]
Chain = list[Link]
FileNames = list[str]
Loaded = dict[str, list[pa.RecordBatch]]


class CheckpointStore:
    """Checkpoints below one folder, or wherever else `files` keeps them.

    Many instances, also zombies, may use the same store: names are never used twice. A store may be
    used by a background thread while another thread uses another store on the same folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: CheckpointFiles | None = None,
        codec: punit.Codec = punit.Codec.ZSTD,
    ) -> None:
        self._codec = codec
        if files is None:
            with _named_errors(f"making folder {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
            files = LocalFiles(folder)
        self._files = files

    def write(
        self,
        vertex: str,
        position: int,
        states: Mapping[str, Iterable[pa.RecordBatch]],
        meta: Mapping[str, Any] | None = None,
        since: Link | None = None,
    ) -> CheckpointId:
        """Write the states of a vertex at a marker; when it returns the checkpoint is durable.

        With `since`, what is given are the changes since that checkpoint.
        If it raises CheckpointError there is no new checkpoint, and older ones are as they were.
        """
        check_any_name(vertex, "vertex")
        for name in states:
            check_name(name, "state")
        if not 0 <= position < 1 << 63:
            raise CheckpointError(f"{position} is not a log position", position=position)
        with _named_errors(f"writing a checkpoint of vertex {vertex!r} at position {position}"):
            checkpoint = self._make_folders(vertex, position)
            try:
                self._write_files(checkpoint, states, dict(meta or {}), since)
            except Exception:
                self._give_up(checkpoint.path)
                raise
        return checkpoint

    def list(self, vertex: str) -> Ids:
        """Return the complete checkpoints of a vertex, oldest first."""
        return [each for each in self._folders(vertex) if MANIFEST in self._names(each.path)]

    def newest(self, vertex: str, upto_position: int) -> CheckpointId | None:
        """Return the newest checkpoint at or before a position."""
        fitting = [each for each in self.list(vertex) if each.position <= upto_position]
        return fitting[-1] if fitting else None

    def load(self, checkpoint: CheckpointId) -> Checkpoint:
        """Read and verify a checkpoint; CheckpointDamaged if anything is not as it was written."""
        chain = self.chain(checkpoint)
        first, *changes = self._read_states(chain)
        return Checkpoint(checkpoint, chain[-1].meta, first, tuple(changes))

    def load_changes(self, links: Sequence[Link]) -> Iterator[Loaded]:
        """Read and verify only what these links of a chain hold."""
        return self._read_states(links)

    def chain(self, checkpoint: CheckpointId) -> Chain:
        """What a checkpoint stands on, the picture first and itself last, without the states.

        CheckpointDamaged if one of them is missing, or is not the one that was built on.
        """
        links = [self._read_manifest(checkpoint)]
        while (since := links[0].since) is not None:
            try:
                link = self._read_manifest(since)
            except CheckpointNotFound as error:
                raise _damaged(checkpoint, MANIFEST, f"{since}, which it needs, is gone") from error
            if link.checksum != links[0].since_checksum:
                raise _damaged(checkpoint, MANIFEST, f"it was built on another {since}")
            links.insert(0, link)
        return links

    def read_meta(self, checkpoint: CheckpointId) -> dict[str, Any]:
        """Return what the writer noted with a checkpoint, without reading the states."""
        return self._read_manifest(checkpoint).meta

    def load_newest(
        self,
        vertex: str,
        upto_position: int,
        check: Callable[[CheckpointId], None] = lambda checkpoint: None,
        from_position: int = 0,
    ) -> tuple[Checkpoint | None, Problems]:
        """Return the newest checkpoint that is whole, and what was wrong with the newer ones.

        Those before `from_position` are not looked at.

        `check` raises a CheckpointError for one that is not to be taken.
        """
        problems: Problems = {}
        for checkpoint in reversed(self.list(vertex)):
            if from_position <= checkpoint.position <= upto_position:
                try:
                    check(checkpoint)
                    return self.load(checkpoint), problems
                except CheckpointVersionUnsupported:
                    raise  # no older one is sure to do
                except CheckpointError as problem:
                    problems[checkpoint] = problem
        return None, problems

    def delete(self, checkpoint: CheckpointId) -> None:
        """Remove a checkpoint: the files that its manifest names, and its folder if then empty."""
        files = self._read_manifest(checkpoint).files
        with _named_errors(f"removing checkpoint {checkpoint}"):
            # Without its manifest the rest is an unfinished checkpoint, whatever happens next.
            self._files.remove_file((*checkpoint.path, MANIFEST))
            self._files.sync_folder(checkpoint.path)
            for name in files:
                with suppress(FileNotFoundError):
                    self._files.remove_file((*checkpoint.path, f"{name}.units"))
            self._remove_folder(checkpoint.path)

    def set_aside(self, checkpoint: CheckpointId) -> None:
        """Make a checkpoint that cannot be used an unfinished one, whatever its files are like.

        It is no longer listed, and goes with the other unfinished ones.
        """
        check_any_name(checkpoint.vertex, "vertex")
        with _named_errors(f"setting checkpoint {checkpoint} aside"), suppress(FileNotFoundError):
            self._files.rename((*checkpoint.path, MANIFEST), MANIFEST_UNFINISHED)
            self._files.sync_folder(checkpoint.path)

    def delete_unfinished(self, vertex: str, below_position: int) -> int:
        """Remove what crashed writers left below a position; return how many folders went.

        A writer that is still at it, which can only be a fenced one, will fail and clean up.
        """
        unfinished = [
            each
            for each in self._folders(vertex)
            if each.position < below_position and MANIFEST not in self._names(each.path)
        ]
        with _named_errors(f"removing unfinished checkpoints of vertex {vertex!r}"):
            return sum(self._remove_unfinished(each.path) for each in unfinished)

    # Writing -----------------------------------------------------------------------------------

    def _make_folders(self, vertex: str, position: int) -> CheckpointId:
        with suppress(FileExistsError):
            self._files.make_folder((vertex,))
        # Also when the folder was there: whoever made it may have died before its name was safe.
        self._files.sync_folder(())
        for attempt in range(ATTEMPTS_MAX):
            checkpoint = CheckpointId(vertex, position, attempt)
            with suppress(FileExistsError):
                self._files.make_folder(checkpoint.path)
                return checkpoint
        raise CheckpointError(
            f"there are {ATTEMPTS_MAX} checkpoints of vertex {vertex!r} at position {position}: "
            "remove them",
            vertex=vertex,
            position=position,
        )

    def _write_files(
        self,
        checkpoint: CheckpointId,
        states: Mapping[str, Iterable[pa.RecordBatch]],
        meta: dict[str, Any],
        since: Link | None,
    ) -> None:
        files: dict[str, UnitNotes] = {}
        for name, batches in states.items():
            units = files[name] = []
            self._files.write_file(
                (*checkpoint.path, f"{name}.units"), self._encoded(batches, units)
            )
        self._files.sync_folder(checkpoint.path)
        manifest = _manifest(checkpoint, meta, files, since)
        self._files.write_file((*checkpoint.path, MANIFEST_UNFINISHED), [manifest])
        self._files.rename((*checkpoint.path, MANIFEST_UNFINISHED), MANIFEST)
        self._files.sync_folder(checkpoint.path)
        self._files.sync_folder(checkpoint.path[:-1])

    def _encoded(self, batches: Iterable[pa.RecordBatch], units: UnitNotes) -> Iterator[Part]:
        """Yield the bytes of a state's file, and note each unit once it was made."""
        at = 0
        for batch in batches:
            unit, digest = punit.encode_unit(batch, self._codec)
            units.append({"at": at, "bytes": unit.size, "checksum": f"{digest:016x}"})
            padding = -unit.size % UNIT_ALIGNMENT_BYTES
            at += unit.size + padding
            yield unit
            yield bytes(padding)

    # Reading -----------------------------------------------------------------------------------

    def _read_manifest(self, checkpoint: CheckpointId) -> Link:
        check_any_name(checkpoint.vertex, "vertex")
        content = self._read(checkpoint, MANIFEST, MANIFEST_BYTES_MAX, absent=CheckpointNotFound)
        try:
            return _parse_manifest(content.to_pybytes(), checkpoint)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidName) as error:
            raise _damaged(checkpoint, MANIFEST, f"it cannot be read: {error}") from error

    def _read_states(self, links: Sequence[Link]) -> Iterator[Loaded]:
        """What each link holds; large ones are decoded by several threads, in order."""
        if sum(link.bytes for link in links) < READ_ALONE_BYTES:
            yield from (self._read_link(link, map) for link in links)
            return
        with ThreadPoolExecutor(READERS, "penstock-restore") as readers:
            yield from (self._read_link(link, readers.map) for link in links)

    def _read_link(self, link: Link, each: Callable[..., Iterable[pa.RecordBatch]]) -> Loaded:
        states: Loaded = {}
        for name, units in link.files.items():
            file = f"{name}.units"
            bytes_max = max((unit.at + unit.size for unit in units), default=0)
            content = self._read(link.id, file, bytes_max, absent=CheckpointDamaged)
            if content.size < bytes_max:
                problem = f"it ends at byte {content.size}, before {bytes_max}"
                raise _damaged(link.id, file, problem)
            states[name] = list(each(partial(_decode_unit, link.id, file, content), units))
        return states

    def _read(
        self,
        checkpoint: CheckpointId,
        file: str,
        bytes_max: int,
        absent: type[CheckpointError],
    ) -> pa.Buffer:
        try:
            return self._files.read_file((*checkpoint.path, file), bytes_max)
        except FileNotFoundError as error:
            if absent is CheckpointNotFound:
                raise CheckpointNotFound(
                    f"there is no checkpoint {checkpoint}", checkpoint=str(checkpoint)
                ) from error
            raise _damaged(checkpoint, file, "it is missing") from error
        except OSError as error:
            if error.errno not in PASSING:
                raise _damaged(checkpoint, file, f"it cannot be read: {error}") from error
            # A disk that does not answer now says nothing about the bytes on it.
            raise CheckpointError(
                f"checkpoint {checkpoint}: {file} cannot be read now: {error}",
                checkpoint=str(checkpoint),
                file=file,
            ) from error

    def _folders(self, vertex: str) -> Ids:
        """All checkpoints of a vertex, complete or not; other names in its folder are not ours."""
        check_any_name(vertex, "vertex")
        matches = (_FOLDER_NAME.fullmatch(name) for name in self._names((vertex,)))
        return sorted(
            CheckpointId(vertex, int(match[1]), int(match[2])) for match in matches if match
        )

    def _names(self, path: FilePath) -> FileNames:
        with _named_errors(f"listing {'/'.join(path)}"):
            return self._files.list_folder(path)

    # Removing ----------------------------------------------------------------------------------

    def _give_up(self, path: FilePath) -> None:
        """Remove what a failed write left; never raises."""
        with suppress(OSError):
            with suppress(FileNotFoundError):  # the manifest first: never without its files
                self._files.remove_file((*path, MANIFEST))
            self._remove_unfinished(path)

    def _remove_unfinished(self, path: FilePath) -> bool:
        """Remove files that only a writer of ours can have made; never raises."""
        with suppress(OSError):
            for name in self._files.list_folder(path):
                if name == MANIFEST_UNFINISHED or _FILE_NAME.fullmatch(name):
                    self._files.remove_file((*path, name))
            return self._remove_folder(path)
        return False

    def _remove_folder(self, path: FilePath) -> bool:
        try:
            self._files.remove_folder(path)
        except OSError:
            return False  # something of someone else's is in it: leave it
        self._files.sync_folder(path[:-1])
        return True


@contextmanager
def _named_errors(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into a CheckpointError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{doing} failed: {error}. Older checkpoints are as they were; check the disk and its "
            "free space",
            errno=error.errno,
        ) from error


def _decode_unit(
    checkpoint: CheckpointId, file: str, content: pa.Buffer, unit: _Unit
) -> pa.RecordBatch:
    body = content.slice(unit.at, unit.size)
    if xxh3_64_hexdigest(body) != unit.checksum:
        raise _damaged(checkpoint, file, f"the unit at byte {unit.at} fails its checksum")
    try:
        return punit.decode(body, is_sound=True)
    except PUnitError as error:
        raise _damaged(checkpoint, file, f"the unit at byte {unit.at}: {error}") from error


def _manifest(
    checkpoint: CheckpointId,
    meta: dict[str, Any],
    files: dict[str, list[dict[str, Any]]],
    since: Link | None,
) -> bytes:
    body = {
        "format": FORMAT,
        "version": VERSION,
        "vertex": checkpoint.vertex,
        "position": checkpoint.position,
        "attempt": checkpoint.attempt,
        "meta": meta,
        "states": files,
        "since": None
        if since is None
        else {
            "position": since.id.position,
            "attempt": since.id.attempt,
            "checksum": since.checksum,
        },
    }
    text = canonical_json(body)
    return spaced_json({"checksum": xxh3_64_hexdigest(text.encode()), "body": text})


def _parse_manifest(content: bytes, checkpoint: CheckpointId) -> Link:
    """Check everything that a manifest says; ValueError and its kin if something is wrong."""
    frame = parse(content)
    text = frame["body"]
    if xxh3_64_hexdigest(text.encode()) != frame["checksum"]:
        raise ValueError("it fails its checksum")
    body = parse(text)
    if body["format"] != FORMAT:
        raise ValueError(f"its format is {body['format']!r}")
    if body["version"] not in VERSIONS_READ:
        raise CheckpointVersionUnsupported(
            f"checkpoint {checkpoint} has version {body['version']}; this Penstock reads version "
            f"{VERSION}: run the one that wrote it, or begin a new log",
            checkpoint=str(checkpoint),
            version=body["version"],
            version_known=VERSION,
        )
    named = CheckpointId(body["vertex"], body["position"], body["attempt"])
    if named != checkpoint:
        raise ValueError(f"it belongs to {named}")
    states = {
        check_name(name, "state"): [_parse_unit(unit) for unit in units]
        for name, units in body["states"].items()
    }
    meta = body["meta"]
    if not isinstance(meta, dict):
        raise ValueError("its meta is not an object")
    since, since_checksum = None, ""
    if body["version"] > 2 and (link := body["since"]) is not None:
        since_checksum = _parse_checksum(link["checksum"])
        since = CheckpointId(checkpoint.vertex, int(link["position"]), int(link["attempt"]))
        if not 0 <= since.position < checkpoint.position or not 0 <= since.attempt < ATTEMPTS_MAX:
            raise ValueError(f"it is built on {since}")
    return Link(checkpoint, meta, states, since, since_checksum, frame["checksum"])


def _parse_unit(unit: Any) -> _Unit:
    at, size = unit["at"], unit["bytes"]
    if type(at) is not int or type(size) is not int or not 0 <= at < at + size < 1 << 62:
        raise ValueError(f"a unit at {at!r} of {size!r} bytes")
    return _Unit(at, size, _parse_checksum(unit["checksum"]))


def _parse_checksum(checksum: Any) -> str:
    if not isinstance(checksum, str) or _CHECKSUM.fullmatch(checksum) is None:
        raise ValueError(f"a checksum {checksum!r}")
    return checksum


def _damaged(checkpoint: CheckpointId, file: str, reason: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {checkpoint}, file {file}: {reason}. Recovery falls back to an older "
        "checkpoint and the changes after it",
        checkpoint=str(checkpoint),
        vertex=checkpoint.vertex,
        position=checkpoint.position,
        file=file,
    )
