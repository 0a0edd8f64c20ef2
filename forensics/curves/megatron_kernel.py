# mypy: disable-error-code="assignment"
"""Compiled scan of Megatron's records: apart from the source, so that small logs never import numba.

The kernel takes a whole piece of the log, writes the records it is sure of to arrays, and stops at the first line that
is not plain (an unknown field, a wrapped record, a missing loss, a value that is no plain number, a total that changed):
the line-by-line reader takes that line, and the kernel goes on behind it. What it writes equals what that reader writes,
bit for bit: a decimal number is converted here only where mantissa and power of ten are exact in float64.
"""

from __future__ import annotations

import numba
import numpy as np

_inner = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")  # compiled into `scan`, cached with it
END, CAREFUL, FULL = 0, 1, 2
POWERS = 10.0 ** np.arange(23)
_WORD = np.frombuffer(b"iteration", np.uint8)
_TIME = np.frombuffer(b"time (ms)", np.uint8)
_DEFAULT = np.frombuffer(b"[default", np.uint8)
_RANK = np.frombuffer(b"[rank", np.uint8)
_VALIDATION, _LOSS_AT, _RESULTS_AT = np.frombuffer(b"validation", np.uint8), np.frombuffer(b" loss at ", np.uint8), np.frombuffer(b" results at ", np.uint8)
_MEMORY, _SEQ_LENGTH = np.frombuffer(b"memory (MB)", np.uint8), np.frombuffer(b"seq_length", np.uint8)
_SAVE, _GENERATOR, _EVALUATE = np.frombuffer(b"save-checkpoint", np.uint8), np.frombuffer(b"batch-generator", np.uint8), np.frombuffer(b"evaluat", np.uint8)


def hash_of(key: bytes) -> int:
    """FNV-1a of a field's name, as the kernel computes it."""
    value = 14695981039346656037
    for byte in key:
        value = ((value ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return value


def table_of(columns: dict[str, int]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Open hash table of field names: hashes (0 = free) and columns, at most a quarter full."""
    size = 1 << max(4, (4 * len(columns)).bit_length())
    hashes, found = np.zeros(size, np.uint64), np.full(size, -1, np.int64)
    for key, column in columns.items():
        value = hash_of(key.encode())
        at = value & (size - 1)
        while hashes[at]:
            at = (at + 1) & (size - 1)
        hashes[at], found[at] = value, column
    return hashes, found


@_inner
def _starts(data, at, stop, word):  # type: ignore[no-untyped-def]
    if at + word.size > stop:
        return False
    for k in range(word.size):  # noqa: SIM110 - compiled loop
        if data[at + k] != word[k]:
            return False
    return True


@_inner
def _hash(data, start, stop):  # type: ignore[no-untyped-def]
    key = np.uint64(14695981039346656037)
    for k in range(start, stop):
        key = (key ^ np.uint64(data[k])) * np.uint64(1099511628211)
    return key


@_inner
def _slot(hashes, key):  # type: ignore[no-untyped-def]
    """Place of a key in an open table whose size is a power of two (0 = free); -1 where it is not there."""
    mask = np.uint64(hashes.size - 1)
    at = key & mask
    while hashes[at] != 0:
        if hashes[at] == key:
            return np.int64(at)
        at = (at + np.uint64(1)) & mask
    return np.int64(-1)


@_inner
def _number(data, at, stop, powers):  # type: ignore[no-untyped-def]
    """(sure, value) of a field's text: one plain number, whatever follows it without a digit."""
    while at < stop and data[at] == 32:
        at += 1
    sign = 1.0
    if at < stop and (data[at] == 45 or data[at] == 43):
        sign = -1.0 if data[at] == 45 else 1.0
        at += 1
    mantissa = np.int64(0)
    digits, scale = 0, 0
    seen = False
    while at < stop and 48 <= data[at] <= 57:
        mantissa = mantissa * 10 + np.int64(data[at] - 48)
        digits += 1 if mantissa > 0 else 0
        seen = True
        at += 1
        if digits > 15:
            return False, 0.0
    if at < stop and data[at] == 46:
        at += 1
        while at < stop and 48 <= data[at] <= 57:
            mantissa = mantissa * 10 + np.int64(data[at] - 48)
            digits += 1 if mantissa > 0 else 0
            scale -= 1
            seen = True
            at += 1
            if digits > 15:
                return False, 0.0
    if not seen:
        return False, 0.0
    if at + 1 < stop and (data[at] == 69 or data[at] == 101):
        mark, exponent, negative = at + 1, 0, False
        if data[mark] == 45 or data[mark] == 43:
            negative = data[mark] == 45
            mark += 1
        begun = mark
        while mark < stop and 48 <= data[mark] <= 57 and mark - begun < 4:
            exponent = exponent * 10 + np.int64(data[mark] - 48)
            mark += 1
        if mark > begun:
            scale += -exponent if negative else exponent
            at = mark
    while at < stop:
        if 48 <= data[at] <= 57:
            return False, 0.0
        at += 1
    if mantissa == 0:
        return True, sign * 0.0
    if scale < -22 or scale > 22:
        return False, 0.0
    return True, sign * (mantissa * powers[scale] if scale >= 0 else mantissa / powers[-scale])


@_inner
def _field(data, start, stop, hashes, columns, values, present, row, powers):  # type: ignore[no-untyped-def]
    """One `key: value`; True where it was read or is blank."""
    colon = stop - 1
    while colon >= start and data[colon] != 58:
        colon -= 1
    if colon < start:
        for k in range(start, stop):  # noqa: SIM110 - compiled loop
            if data[k] != 32:
                return False
        return True
    first, last = start, colon
    while first < last and data[first] == 32:
        first += 1
    while last > first and data[last - 1] == 32:
        last -= 1
    key = _hash(data, first, last)
    slot = _slot(hashes, key)
    if slot < 0:
        return False
    column = columns[slot]
    if column < 0:
        return True
    sure, value = _number(data, colon + 1, stop, powers)
    if sure:
        values[row, column] = value
        present[row, column] = True
    return sure


@_inner
def _fields(data, start, stop, hashes, columns, values, present, row, powers):  # type: ignore[no-untyped-def]
    """All fields between bars; True where each was read."""
    begun = start
    for at in range(start, stop + 1):
        if at == stop or data[at] == 124:
            if at > begun and not _field(data, begun, at, hashes, columns, values, present, row, powers):
                return False
            begun = at + 1
    return True


@_inner
def _digits(data, at, n):  # type: ignore[no-untyped-def]
    value = 0
    for k in range(at, at + n):
        if data[k] < 48 or data[k] > 57:
            return -1
        value = value * 10 + np.int64(data[k] - 48)
    return value


@_inner
def _clock(data, start, stop):  # type: ignore[no-untyped-def]
    """(sure, microseconds since 1970) of the first `YYYY-MM-DD HH:MM:SS[.ffffff]`; -1 where there is none."""
    for at in range(start, stop - 18):
        if data[at + 4] != 45 or data[at + 7] != 45 or data[at + 13] != 58 or data[at + 16] != 58 or (data[at + 10] != 32 and data[at + 10] != 84):
            continue
        year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
        hour, minute, second = _digits(data, at + 11, 2), _digits(data, at + 14, 2), _digits(data, at + 17, 2)
        if min(year, month, day, hour, minute, second) < 0:
            continue
        if year < 1970 or month < 1 or month > 12 or day < 1 or day > 28 + 3 * (month != 2) or hour > 23 or minute > 59 or second > 59:
            return False, 0
        if at + 19 < stop and (data[at + 19] == 46 or data[at + 19] == 44):
            return False, 0
        y = year - (1 if month <= 2 else 0)
        era = y // 400
        of_era = y - era * 400
        of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
        days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
        return True, ((days * 24 + hour) * 60 + minute) * 60 + second
    return True, -1


@_inner
def _speaker(data, start, stop):  # type: ignore[no-untyped-def]
    """Rank named by a launcher's prefix (`[default7]`, `[rank3]`, `12: `); -1 for none, -2 for what is not plain."""
    for at in range(start, stop):
        word = 8 if _starts(data, at, stop, _DEFAULT) else (5 if _starts(data, at, stop, _RANK) else 0)
        if word:
            rank, mark = 0, at + word
            while mark < stop and 48 <= data[mark] <= 57 and mark - at < 16:
                rank = rank * 10 + np.int64(data[mark] - 48)
                mark += 1
            if mark > at + word and mark < stop and data[mark] == 93:
                return rank
            return -2
    at = start
    while at < stop and data[at] == 32:
        at += 1
    rank, begun = 0, at
    while at < stop and 48 <= data[at] <= 57:
        rank = rank * 10 + np.int64(data[at] - 48)
        at += 1
        if at - begun > 5:
            return -1
    return rank if at > begun and at + 1 < stop and data[at] == 58 and data[at + 1] == 32 else -1


@_inner
def _header(data, start, stop):  # type: ignore[no-untyped-def]
    """(place of `iteration`, step, total, place behind the bar) of a record; place -1 where the line is none."""
    for at in range(start, stop - 9):
        if data[at] != 105 or not _starts(data, at, stop, _WORD):
            continue
        mark = at + 9
        if mark < stop and data[mark] == 58:
            mark += 1
        if (
            mark >= stop
            or data[mark] != 32
            or (at > start and (data[at - 1] == 95 or 48 <= data[at - 1] <= 57 or 65 <= data[at - 1] <= 90 or 97 <= data[at - 1] <= 122))
        ):
            continue
        step, total = np.int64(0), np.int64(0)
        while mark < stop and data[mark] == 32:
            mark += 1
        begun = mark
        while mark < stop and 48 <= data[mark] <= 57 and mark - begun < 18:
            step = step * 10 + np.int64(data[mark] - 48)
            mark += 1
        if mark == begun:
            continue
        while mark < stop and data[mark] == 32:
            mark += 1
        if mark >= stop or data[mark] != 47:
            continue
        mark += 1
        while mark < stop and data[mark] == 32:
            mark += 1
        begun = mark
        while mark < stop and 48 <= data[mark] <= 57 and mark - begun < 18:
            total = total * 10 + np.int64(data[mark] - 48)
            mark += 1
        if mark == begun:
            continue
        while mark < stop and data[mark] == 32:
            mark += 1
        if mark < stop and data[mark] == 124:
            return at, step, total, mark + 1
    return -1, np.int64(0), np.int64(0), -1


@_inner
def _timers(data, start, stop, hashes, columns, values, present, row, powers):  # type: ignore[no-untyped-def]
    """Known timers of a `time (ms)` line, in seconds, beside the record before it; True where each was read."""
    begun = start
    for at in range(start, stop + 1):
        if at < stop and data[at] != 124:
            continue
        colon = at - 1
        while colon > begun and data[colon] != 58:
            colon -= 1
        left, right = begun, colon
        while left < right and data[left] == 32:
            left += 1
        while right > left and data[right - 1] == 32:
            right -= 1
        slot = _slot(hashes, _hash(data, left, right))
        if slot >= 0:
            sure, value = _number(data, colon + 1, at, powers)
            if not sure:
                return False
            values[row, columns[slot]] = value / 1e3
            present[row, columns[slot]] = True
        begun = at + 1
    return True


@_inner
def _telling(data, start, stop):  # type: ignore[no-untyped-def]
    """Whether a line that is no record may hold what the careful reader looks for."""
    for at in range(start, stop - 8):
        byte = data[at]
        if byte == 118:
            if _starts(data, at, stop, _VALIDATION):
                return True
        elif byte == 32:
            if _starts(data, at, stop, _LOSS_AT) or _starts(data, at, stop, _RESULTS_AT):
                return True
        elif byte == 109:
            if _starts(data, at, stop, _MEMORY):
                return True
        elif byte == 115:
            if _starts(data, at, stop, _SEQ_LENGTH) or _starts(data, at, stop, _SAVE):
                return True
        elif byte == 98:
            if _starts(data, at, stop, _GENERATOR):
                return True
        elif byte == 101 and _starts(data, at, stop, _EVALUATE):
            return True
    return False


@numba.njit(cache=True, nogil=True, error_model="numpy")
def scan(data, start, total, hashes, columns, timer_hashes, timer_columns, loss, powers, steps, lines, clocks, ranks, values, present):  # type: ignore[no-untyped-def]
    """Plain records from `start` on.

    Args:
        data: bytes of whole lines.
        start: where to begin, the first byte of a line.
        total: length of training that records must name.
        hashes: open table of the hashes of known field names, as `table_of` makes it.
        columns: their columns (-1: known, not kept).
        timer_hashes: the same for `time (ms)` lines, which add to the record before them.
        timer_columns: their columns.
        loss: column that a plain record must have.
        powers: 10 ** 0..22.
        steps: [capacity] output.
        lines: [capacity] output, from 0 at `start`.
        clocks: [capacity] output, seconds since 1970, -1 = none.
        ranks: [capacity] output, -1 = none.
        values: [capacity, columns] output.
        present: [capacity, columns] output.

    Returns:
        Records written, place reached, lines passed, and why it stopped: END, CAREFUL (a line for the careful reader), FULL.
    """
    at, row, line, size = start, 0, 0, data.size
    bars = np.empty(128, np.int64)
    record, fresh = -1, False  # where the last record stands, and whether no other line has come since
    while at < size:
        stop, n_bars = at, 0
        while stop < size and data[stop] != 10:
            if data[stop] == 124:
                if n_bars < bars.size:
                    bars[n_bars] = stop
                n_bars += 1
            stop += 1
        last = stop
        while last > at and (data[last - 1] == 32 or data[last - 1] == 13 or data[last - 1] == 9):
            last -= 1
        first = at
        while first < last and data[first] == 32:
            first += 1
        place, step, length, behind = -1, np.int64(0), np.int64(0), -1
        if n_bars:
            place, step, length, behind = _header(data, at, last)
        if place >= 0:
            if row >= steps.size:
                return row, at, line, FULL
            if length != total or stop >= size or data[last - 1] != 124 or n_bars > bars.size:
                return row, at, line, CAREFUL
            sure, clock = _clock(data, at, place)
            rank = _speaker(data, at, place)
            if not sure or rank == -2:
                return row, at, line, CAREFUL
            for k in range(present.shape[1]):
                present[row, k] = False
            begun, before = at, False
            for k in range(at, place):
                if data[k] == 93:
                    begun = k + 1
                elif data[k] == 124:
                    before = True
            plain = not before or _fields(data, begun, place, hashes, columns, values, present, row, powers)
            for k in range(n_bars):
                if plain and bars[k] > behind:
                    plain = _field(data, behind, bars[k], hashes, columns, values, present, row, powers)
                    behind = bars[k] + 1
            if not plain or not present[row, loss]:
                return row, at, line, CAREFUL
            steps[row], lines[row], clocks[row], ranks[row] = step, line, clock, rank
            row += 1
            record, fresh = at, True
            at = stop + 1
            line += 1
            continue
        if place < 0 and n_bars and 97 <= data[first] <= 122 and (fresh or at == start) and not _starts(data, first, last, _TIME):
            return (row - 1, record, lines[row - 1], CAREFUL) if fresh else (row, at, line, CAREFUL)  # the rest of a wrapped record
        fresh = False
        if n_bars and _starts(data, first, last, _TIME):
            if row == 0 or not _timers(data, first + _TIME.size, last, timer_hashes, timer_columns, values, present, row - 1, powers):
                return row, at, line, CAREFUL
        elif _telling(data, at, last):
            return row, at, line, CAREFUL
        at = stop + 1
        line += 1
    return (row - 1, record, lines[row - 1], CAREFUL) if fresh else (row, size, line, END)  # its rest may stand in the next piece
