"""The rows of one file of lines, read in blocks of bounded size from any byte on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from penstock.connectors import line_kernels as kernels
from penstock.connectors.contract import offset_refused
from penstock.connectors.folder_files import FileRows, OpenFile, Piece
from penstock.connectors.folder_shares import Share
from penstock.connectors.line_formats import CsvLines, LineFormat, Lines
from penstock.connectors.rejects import Reject

BLOCK_BYTES_MIN = 1 << 16
LINE_BYTES_GUESS = 256
LONG_LINE_KEPT_BYTES = 4_096
HEADER_LINES = 64
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Endings of names by which Spark knows that a file is compressed.
COMPRESSED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".zstd")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class LineFileRows(FileRows):
    """Lines from a byte position on; the position of a row is that of its line's first byte.

    A part of a file has the lines that begin in it. Rows count from its first one; only where a
    line has to be shown are those before it counted.
    """

    def __init__(
        self,
        file: OpenFile,
        share: Share,
        form: LineFormat,
        stop_at_first: bool,
        block_bytes: int,
        line_bytes_max: int,
    ) -> None:
        self._file = file
        self._form = form
        self._stop_at_first = stop_at_first
        self._block_bytes = block_bytes
        self._line_bytes_max = line_bytes_max
        self._header_misfit: str | None = None
        self._header_bytes = self._header_lines = 0
        self._header_read = not form.header
        self._share = share
        self._end = file.size_bytes if share.end_byte is None else share.end_byte
        self._first_byte: int | None = None  # of the share's first line
        self._lines_before: int | None = None  # in the file

    def read(self, byte: int, row: int, rows_max: int) -> Piece:
        size = self._file.size_bytes
        if byte > size or (byte == 0) != (row == 0):
            raise offset_refused({"byte": byte, "row": row}, f"the file has {size} bytes")
        if not self._header_read:
            self._read_header()
        if byte == 0 and self._share.part:
            byte = self._first()
        if byte >= self._end:
            return self._piece(byte, row)
        if byte == 0 and self._header_bytes:
            return self._after_header()
        lines, used = self._lines(byte, row, rows_max)
        if lines is None:
            return self._skip_long_line(byte, row)
        # The first is: it begins here, even if a byte order mark is left out.
        inside = max(1, int(np.searchsorted(lines.starts, self._end - byte)))
        if inside < len(lines):
            used, lines = int(lines.starts[inside]), lines.pick(slice(inside))
        if self._header_misfit is not None:
            rejects = [(line, self._header_misfit) for line in range(len(lines))]
            return self._piece(byte + used, row + len(lines), None, self._kept(lines, rejects, row))
        batch, misfits = self._form.rows(lines, self._stop_at_first)
        rejects_kept = self._kept(lines, misfits, row)
        return self._piece(byte + used, row + len(lines), batch, rejects_kept)

    def _piece(
        self, byte: int, row: int, batch: object = None, rejects: Sequence[Reject] = ()
    ) -> Piece:
        return Piece(batch, tuple(rejects), byte, row, byte >= self._end)

    def _kept(self, lines: Lines, misfits: Sequence[tuple[int, str]], row: int) -> list[Reject]:
        if not misfits:
            return []
        name, row = self._file.shown, self._rows_before() + row
        return [Reject(name, row + line + 1, lines.text(line), reason) for line, reason in misfits]

    def _first(self) -> int:
        """Return where the first line begins that is a part's own."""
        if self._first_byte is None:
            found = self._line_end(self._share.begin_byte - 1, 0) if self._share.begin_byte else 0
            self._first_byte = max(found, self._header_bytes)
        return self._first_byte

    def _rows_before(self) -> int:
        """Return how many lines of the file are before the part."""
        if self._lines_before is None:
            self._lines_before = byte = 0
            first = self._first() if self._share.part else 0
            ends_with_return = False
            while byte < first:
                block = self._file.pread(byte, min(self._block_bytes, first - byte), 0)
                self._lines_before += len(_LINE_END.findall(block))
                if ends_with_return and block[:1] == b"\n":
                    self._lines_before -= 1
                ends_with_return = block[-1:] == b"\r"
                byte += len(block)
        return self._lines_before

    def _lines(self, byte: int, row: int, lines_max: int) -> tuple[Lines | None, int]:
        """Return complete lines from a byte on and their size; None if one line is too long."""
        left = self._file.size_bytes - byte
        guess = min(max(lines_max * LINE_BYTES_GUESS, BLOCK_BYTES_MIN), self._block_bytes)
        while True:
            # Two bytes more than the longest line: its line end.
            take = min(guess, left, self._line_bytes_max + 2)
            data = np.frombuffer(self._file.pread(byte, take, row), np.uint8)
            starts, ends, used = kernels.find_lines(data, lines_max, take == left)
            if starts.size:
                if byte == 0 and data[:3].tobytes() == BYTE_ORDER_MARK:
                    starts[0] = 3
                return Lines(data, starts, ends), int(used)
            if take == left or take > self._line_bytes_max + 1:
                return None, 0
            guess *= 4

    def _skip_long_line(self, byte: int, row: int) -> Piece:
        """Set a line beyond the bound aside, of which only the beginning is kept."""
        size = self._file.size_bytes
        head = self._file.pread(byte, min(LONG_LINE_KEPT_BYTES, size - byte), row)
        reason = f"the line has more than {self._line_bytes_max} bytes; its beginning is kept"
        line = self._rows_before() + row + 1
        reject = Reject(self._file.shown, line, head.decode("utf-8", "backslashreplace"), reason)
        return self._piece(self._line_end(byte, row), row + 1, None, [reject])

    def _line_end(self, byte: int, row: int) -> int:
        """Return where the line after the one at `byte` begins, however long that is."""
        size = self._file.size_bytes
        while byte < size:
            block = self._file.pread(byte, min(self._block_bytes, size - byte), row)
            found = _LINE_END.search(block)
            if found is None:
                byte += len(block)
            elif found[0] == b"\r" and found.end() == len(block):
                byte += found.end()
                return byte + (self._file.pread(byte, min(1, size - byte), row) == b"\n")
            else:
                return byte + found.end()
        return byte

    def _read_header(self) -> None:
        """Find the header, which is the first line that is not blank."""
        assert isinstance(self._form, CsvLines)
        self._header_read = True
        byte = row = 0
        while byte < self._file.size_bytes:
            lines, used = self._lines(byte, row, HEADER_LINES)
            if lines is None:
                self._header_misfit = "the header line is too long"
                self._header_bytes, self._header_lines = self._line_end(byte, row), row + 1
                return
            filled = np.flatnonzero(self._form.judge(lines) != kernels.BLANK)
            if filled.size:
                line = filled[:1]
                self._header_misfit = self._form.header_misfit(lines.pick(line))
                lines, used = self._lines(byte, row, int(line[0]) + 1)
                self._header_bytes, self._header_lines = byte + used, row + int(line[0]) + 1
                return
            byte, row = byte + used, row + len(lines)
        self._header_bytes, self._header_lines = byte, row

    def _after_header(self) -> Piece:
        if self._header_misfit is not None and self._stop_at_first:
            reject = Reject(self._file.shown, self._header_lines, "", self._header_misfit)
            return self._piece(0, 0, None, [reject])
        return self._piece(self._header_bytes, self._header_lines)


class CompressedFileRows(FileRows):
    """A file that Spark would decompress, by its name. Here it is set aside as a whole."""

    def __init__(self, file: OpenFile, share: Share) -> None:
        self._file = file
        self._share = share

    def read(self, byte: int, row: int, rows_max: int) -> Piece:
        if self._share.part:
            return Piece(None, (), 0, 0, True)
        told = "its name says that it is compressed: decompress it, compressed text is not read"
        return Piece(None, (Reject(self._file.shown, 0, "", told),), 0, 0, True)


def lines_most(content: bytes) -> int:
    """Return how many lines a file has at most."""
    return content.count(b"\n") + content.count(b"\r") + 1


def joined_lines(contents: Sequence[bytes]) -> Lines | None:
    """Return the lines of whole files, one after the other; None if there are none."""
    whole = bytearray()
    for content in contents:
        whole += content.removeprefix(BYTE_ORDER_MARK)
        if content and not content.endswith(b"\n"):
            whole += b"\n"  # after a return, too: the next file may begin with a newline
    data = np.frombuffer(whole, np.uint8)
    starts, ends, _ = kernels.find_lines(data, data.size, True)
    return Lines(data, starts, ends) if starts.size else None
