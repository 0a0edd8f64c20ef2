"""The scan over a curve: moving robust baseline, point and drift rules, events with a frozen baseline. Compiled; one pass.

The baseline is a line of the value against the logarithm of the step over the last unflagged records, refitted every few records. A record
beyond the point threshold, or a CUSUM of either sign beyond its limit, opens an event: the baseline is refitted on the records before the onset and frozen,
so that neither the event nor its aftermath teaches the detector. An event closes when the mean of z over ten records has stayed inside +-1 for
fifteen; one that never comes back is adopted as the new level once the curve has settled, and the scan goes on from there. A loss that merely falls more
slowly than its baseline is no event: the baseline is learnt anew from those records.
"""

# mypy: disable-error-code="assignment, arg-type"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import numpy as np
from numba import njit

from forensics.curves.event import ADOPTED, CLOSED, OPEN
from forensics.robust import MAD_TO_SD

MEAN = 10  # records in the closing mean
CALM = 15  # how long it must stay inside +-1
CLIP = 4.0  # z inside the CUSUM: two isolated records of a heavy tail must not add up to an alarm, and larger z open an event by themselves
BEND = 4.0  # standard errors of curvature at which the baseline is cut shorter
GIVE = 0.3  # share by which a slope may change on the way without an event: no loss is straight for ever
SLOWING = 20  # records between two looks whether an event is only a slower fall
LEAST = 60  # records that a baseline keeps however far back they lie


@njit(cache=True)
def ema_kernel(step, value, half_life):  # type: ignore[no-untyped-def]
    """EMA with irregular steps; see trend.ema."""
    out = np.full(len(value), np.nan)
    total = 0.0
    weight = 0.0
    last = 0.0
    for i in range(len(value)):
        if weight > 0.0:
            keep = 2.0 ** (-(step[i] - last) / half_life)
        else:
            keep = 2.0 ** (-1.0 / half_life)
        if np.isfinite(value[i]):
            total = keep * total + (1.0 - keep) * value[i]
            weight = keep * weight + (1.0 - keep)
            last = step[i]
        if weight > 0.0:
            out[i] = total / weight
    return out


@njit(cache=True)
def _fit(x, y, m, floor, out):  # type: ignore[no-untyped-def]
    """Robust line through the first m pairs: out = intercept, slope, scale, lag-one correlation, mean x, sum of squares of x, bend in standard errors."""
    w = np.ones(m)
    r = np.empty(m)
    a = 0.0
    b = 0.0
    s = floor
    mx = 0.0
    sxx = 0.0
    for it in range(3):
        sw = 0.0
        mx = 0.0
        my = 0.0
        for i in range(m):
            sw += w[i]
            mx += w[i] * x[i]
            my += w[i] * y[i]
        mx /= sw
        my /= sw
        sxx = 0.0
        sxy = 0.0
        for i in range(m):
            sxx += w[i] * (x[i] - mx) ** 2
            sxy += w[i] * (x[i] - mx) * (y[i] - my)
        b = sxy / sxx if sxx > 0 else 0.0
        a = my - b * mx
        for i in range(m):
            r[i] = abs(y[i] - a - b * x[i])
        if it == 0 or it == 2:
            s = max(floor, MAD_TO_SD * np.median(r))
        for i in range(m):
            w[i] = 1.0 if r[i] <= 1.345 * s else 1.345 * s / r[i]
    middle = 0.0
    outer = 0.0
    q = m // 4
    for i in range(m):
        v = min(max((y[i] - a - b * x[i]) / s, -3.0), 3.0)
        if i < q or i >= m - q:
            outer += v / (2 * q)
        else:
            middle += v / (m - 2 * q)
    out[6] = (middle - outer) / np.sqrt(1.0 / (m - 2 * q) + 1.0 / (2 * q)) if q > 0 else 0.0
    num = 0.0
    den = 0.0
    one = 0.0
    two = 0.0
    before = 0.0
    older = 0.0
    for i in range(m):
        v = min(max((y[i] - a - b * x[i]) / s, -3.0), 3.0)
        den += v * v
        if i > 0:
            num += v * before
        if i > 1:
            one += (v - before) ** 2
            two += (v - older) ** 2
        older = before
        before = v
    near = num / den if den > 0 else 0.0
    slow = two / one - 1.0 if one > 0 else 0.0  # of an AR(1), from differences: a trend that the line misses does not enter
    out[3] = max(min(near, 0.5), min(slow, 0.95))
    out[0] = a
    out[1] = b
    out[2] = s
    out[4] = mx
    out[5] = sxx


@njit(cache=True)
def _isolated(x, y, t, fit, sign):  # type: ignore[no-untyped-def]
    """Whether the records around t are back at the baseline: a one-step outlier."""
    for j in range(t - 1, t + 3):
        if j != t and 0 <= j < len(y) and sign * (y[j] - fit[0] - fit[1] * x[j]) > 3.0 * fit[2]:
            return False
    return t + 1 < len(y)


@njit(cache=True)
def _refit(x, y, kept, head, tail, floor, fit, bx, by):  # type: ignore[no-untyped-def]
    """Fit the line through the kept records."""
    for i in range(head, tail):
        bx[i - head] = x[kept[i]]
        by[i - head] = y[kept[i]]
    _fit(bx, by, tail - head, floor, fit)


@njit(cache=True)
def _slows(y, z, onset, t, scale):  # type: ignore[no-untyped-def]
    """Whether an upward event so far is only a slower fall: off the trend little by little, and at no place above the level before it."""
    if onset < 20:
        return False
    if np.median(z[onset + 4 : onset + 12]) > 0.5 * np.median(z[t - 11 : t + 1]):
        return False
    level = np.median(y[onset - 20 : onset])
    for i in range(onset, t - 7, 4):
        if np.median(y[i : i + 9]) > level + 2.0 * scale:
            return False
    tall = 0
    for i in range(onset, t + 1):
        if y[i] > level + 6.0 * scale:
            tall += 1
            if i > onset and y[i - 1] > level + 6.0 * scale:
                return False
    return tall <= 0.01 * (t + 1 - onset)


@njit(cache=True)
def scan(x, y, window, reach, refit, first, point, k, h, floor, settle):  # type: ignore[no-untyped-def]
    """Scan a curve; see the module.

    Args:
        x, y: float64 [n], position (log step) and value, all finite.
        window: records of the baseline, at most.
        reach: how far the baseline reaches back on x (a loss is straight in log step only over a factor of two or so).
        refit: records between two fits.
        first: index of the first record that is judged.
        point: z that opens an event by itself.
        k, h: drift rule: slack and limit of the CUSUM, z widened for correlated noise.
        floor: smallest scale.
        settle: records after which an event that does not close may be adopted as a new level.

    Returns:
        z, expected, scale: float64 [n]; event: int32 [n], 0 outside events, -1 for a one-step outlier, else the event's number from 1;
        events: float64 [m, 12]: onset, index at detection, index after the last record, how it closed, intercept, slope, scale, lag-one
        correlation, mean x and sum of squares of the frozen fit, records of the fit, +1 opened upwards / -1 downwards.
    """
    n = len(y)
    z = np.zeros(n)
    expected = np.full(n, np.nan)
    scale = np.full(n, np.nan)
    event = np.zeros(n, dtype=np.int32)
    events = np.empty((n // 8 + 2, 12))
    n_events = 0
    kept = np.empty(n + window, dtype=np.int64)
    head = np.int64(0)  # a plain 0 is a type of its own, for which what is called with it would be compiled too
    tail = np.int64(0)
    bx = np.empty(window)
    by = np.empty(window)
    fit = np.zeros(7)
    own = np.zeros(7)
    fitted = False
    next_fit = 0
    su = 0.0
    sd = 0.0
    zero_up = -1
    zero_down = -1
    inside = False
    recent = np.zeros(MEAN)
    calm = 0
    width = 1.0
    sign = 1.0
    onset = np.int64(0)
    for t in range(n):
        if not inside and t >= next_fit and tail - head >= min(window, 16):
            while tail - head > LEAST and x[t] - x[kept[head]] > reach:
                head += 1
            _refit(x, y, kept, head, tail, floor, fit, bx, by)
            phi = min(max(fit[3], 0.0), 0.95)
            while abs(fit[6]) > BEND * np.sqrt((1 + phi) / (1 - phi)) and tail - head > LEAST:
                head = max(head, min(tail - LEAST, tail - (tail - head) * 3 // 4))
                _refit(x, y, kept, head, tail, floor, fit, bx, by)
                phi = min(max(fit[3], 0.0), 0.95)
            fitted = True
            next_fit = t + (refit if tail - head >= window // 2 else 1)
            width = np.sqrt((1 + phi) / (1 - phi))
        if fitted:
            expected[t] = fit[0] + fit[1] * x[t]
            scale[t] = fit[2]
            z[t] = (y[t] - expected[t]) / fit[2]
        if not inside:
            keep = True
            if fitted and t >= first:
                if abs(z[t]) >= point and _isolated(x, y, t, fit, np.sign(z[t])):
                    event[t] = -1
                    keep = False
                else:
                    c = min(max(z[t], -CLIP), CLIP) / width
                    su = su + c - k
                    if su <= 0.0:
                        su = 0.0
                        zero_up = t
                    sd = sd - c - k
                    if sd <= 0.0:
                        sd = 0.0
                        zero_down = t
                    up = z[t] >= point or su >= h
                    down = z[t] <= -point or sd >= h
                    if up or down:
                        onset = t
                        if up and su >= h:
                            onset = min(onset, zero_up + 1)
                        if down and sd >= h:
                            onset = min(onset, zero_down + 1)
                        onset = max(onset, first)
                        sign = 1.0 if up else -1.0
                        while onset > first and event[onset - 1] == 0 and sign * z[onset - 1] >= 3.0:
                            onset -= 1
                        while tail - head > 16 and kept[tail - 1] >= onset:
                            tail -= 1
                        _refit(x, y, kept, head, tail, floor, fit, bx, by)
                        inside = True
                        n_events += 1
                        e = events[n_events - 1]
                        e[0] = onset
                        e[1] = t
                        e[4] = fit[0]
                        e[5] = fit[1]
                        e[6] = fit[2]
                        e[7] = fit[3]
                        e[8] = fit[4]
                        e[9] = fit[5]
                        e[10] = tail - head
                        e[11] = sign
                        recent[:] = 0.0
                        calm = 0
                        for j in range(onset, t + 1):
                            expected[j] = fit[0] + fit[1] * x[j]
                            scale[j] = fit[2]
                            z[j] = (y[j] - expected[j]) / fit[2]
                            event[j] = n_events
                            recent[j % MEAN] = min(max(z[j], -6.0), 6.0)
                        continue
            if keep:
                if tail - head == window:
                    head += 1
                kept[tail] = t
                tail += 1
            continue
        event[t] = n_events
        slack = GIVE * abs(fit[1]) * (x[t] - x[onset]) / fit[2]
        excess = max(0.0, abs(z[t]) - slack) * np.sign(z[t])
        recent[t % MEAN] = min(max(excess, -6.0), 6.0)
        calm = calm + 1 if abs(recent.mean()) < 1.0 else 0
        close = -1
        age = t - onset
        if sign > 0.0 and age % SLOWING == 0 and 2 * SLOWING <= age <= 50 * SLOWING and _slows(y, z, onset, t, fit[2]):
            tail = head
            for j in range(max(onset, t - window + 1), t + 1):
                kept[tail] = j
                tail += 1
            _refit(x, y, kept, head, tail, floor, fit, bx, by)
            for j in range(onset, t + 1):
                event[j] = 0
                if j >= kept[head]:
                    expected[j] = fit[0] + fit[1] * x[j]
                z[j] = min(max((y[j] - expected[j]) / scale[j], -3.0), 3.0)
            n_events -= 1
            inside = False
            next_fit = t + 1
            su = 0.0
            sd = 0.0
            zero_up = t
            zero_down = t
            continue
        if calm >= CALM:
            close = CLOSED
        elif t - onset >= settle and (t - onset) % 25 == 0:
            m = min(window, min(settle // 2, t - onset))
            for i in range(m):
                bx[i] = x[t - m + 1 + i]
                by[i] = y[t - m + 1 + i]
            _fit(bx, by, m, floor, own)
            phi = min(max(own[3], 0.0), 0.9)
            if own[5] > 0 and abs(own[1] - fit[1]) * np.sqrt(own[5]) < 4.0 * own[2] * np.sqrt((1 + phi) / (1 - phi)):
                close = ADOPTED
                tail = head
                for j in range(t - m + 1, t + 1):
                    kept[tail] = j
                    tail += 1
        if close >= 0:
            e = events[n_events - 1]
            e[2] = t + 1
            e[3] = close
            if close == CLOSED:
                for j in range(t - CALM + 1, t + 1):
                    if tail - head == window:
                        head += 1
                    kept[tail] = j
                    tail += 1
                    event[j] = 0
                e[2] = t - CALM + 1
            inside = False
            next_fit = t + 1
            su = 0.0
            sd = 0.0
            zero_up = t
            zero_down = t
    if inside:
        e = events[n_events - 1]
        e[2] = n
        e[3] = OPEN
    return z, expected, scale, event, events[:n_events]
