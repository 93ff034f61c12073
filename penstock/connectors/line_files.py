"""The rows of one file of lines, read in blocks of bounded size from any byte on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.connectors import line_kernels as kernels
from penstock.connectors.contract import offset_refused
from penstock.connectors.folder_files import AnnouncedFile, FileRows, Piece
from penstock.connectors.line_formats import CsvLines, LineFormat, Lines
from penstock.connectors.rejects import Misfit, Reject

BLOCK_BYTES_MIN = 1 << 16
LINE_BYTES_GUESS = 256
LONG_LINE_KEPT_BYTES = 4_096
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineFileRows(FileRows):
    """Lines from a byte position on; the position of a row is that of its line's first byte."""

    def __init__(
        self,
        file: AnnouncedFile,
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
        self._names: list[str] | None = None
        self._header_misfit: str | None = None
        self._header_bytes = 0
        self._header_read = not form.header

    def read(self, byte: int, row: int, rows_max: int) -> Piece:
        size = self._file.entry.size_bytes
        if byte > size or (byte == 0) != (row == 0):
            raise offset_refused({"byte": byte, "row": row}, f"the file has {size} bytes")
        if byte == size:
            return self._piece(byte, row)
        if not self._header_read:
            self._read_header()
        if byte == 0 and self._header_bytes:
            return self._after_header()
        lines, used = self._lines(byte, row, rows_max)
        if lines is None:
            return self._skip_long_line(byte, row)
        if self._header_misfit is not None:
            rejects = [(line, self._header_misfit) for line in range(len(lines))]
            return self._piece(byte + used, row + len(lines), None, self._kept(lines, rejects, row))
        batch, misfits = self._form.rows(lines, self._stop_at_first, self._names)
        rejects_kept = self._kept(lines, misfits, row)
        return self._piece(byte + used, row + len(lines), batch, rejects_kept)

    def _piece(
        self, byte: int, row: int, batch: object = None, rejects: Sequence[Reject] = ()
    ) -> Piece:
        return Piece(batch, tuple(rejects), byte, row, byte >= self._file.entry.size_bytes)

    def _kept(self, lines: Lines, misfits: Sequence[tuple[int, str]], row: int) -> list[Reject]:
        name = self._file.shown
        return [Reject(name, row + line + 1, lines.text(line), reason) for line, reason in misfits]

    def _lines(self, byte: int, row: int, lines_max: int) -> tuple[Lines | None, int]:
        """Return complete lines from a byte on and their size; None if one line is too long."""
        left = self._file.entry.size_bytes - byte
        guess = min(max(lines_max * LINE_BYTES_GUESS, BLOCK_BYTES_MIN), self._block_bytes)
        while True:
            # One byte more than the longest line: its line end.
            take = min(guess, left, self._line_bytes_max + 1)
            data = np.frombuffer(self._file.pread(byte, take, row), np.uint8)
            starts, ends, used = kernels.find_lines(data, lines_max, take == left)
            if starts.size:
                if byte == 0 and data[:3].tobytes() == BYTE_ORDER_MARK:
                    starts[0] = 3
                return Lines(data, starts, ends), int(used)
            if take == left or take > self._line_bytes_max:
                return None, 0
            guess *= 4

    def _skip_long_line(self, byte: int, row: int) -> Piece:
        """Set a line beyond the bound aside, of which only the beginning is kept."""
        size = self._file.entry.size_bytes
        head = self._file.pread(byte, min(LONG_LINE_KEPT_BYTES, size - byte), row)
        at = byte
        while at < size:
            block = self._file.pread(at, min(self._block_bytes, size - at), row)
            found = block.find(b"\n")
            at += len(block) if found < 0 else found + 1
            if found >= 0:
                break
        reason = f"the line has more than {self._line_bytes_max} bytes; its beginning is kept"
        text = head.decode("utf-8", "backslashreplace")
        return self._piece(at, row + 1, None, [Reject(self._file.shown, row + 1, text, reason)])

    def _read_header(self) -> None:
        assert isinstance(self._form, CsvLines)
        lines, self._header_bytes = self._lines(0, 0, 1)
        if lines is None:
            self._header_misfit = "the header line is too long"
        else:
            try:
                self._names = self._form.header_names(lines)
            except Misfit as misfit:
                self._header_misfit = str(misfit)
        self._header_read = True

    def _after_header(self) -> Piece:
        if self._header_misfit is not None and self._stop_at_first:
            lines, _ = self._lines(0, 0, 1)
            assert lines is not None
            return self._piece(0, 0, None, self._kept(lines, [(0, self._header_misfit)], 0))
        return self._piece(self._header_bytes, 1)
