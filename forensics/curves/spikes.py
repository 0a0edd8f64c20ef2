"""Spikes, dips and level shifts of the loss, and one-step outliers.

Excursions of the scan that lie close together are one event: much dirty text is learnt within steps and drives the loss down first, and the
harm shows when clean data come back. The shape follows from what is left afterwards, not from the height.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forensics.curves.event import ADOPTED, CLOSED, OPEN, Context, Event, Scan, scan_of
from forensics.curves.onset import departure
from forensics.curves.scores import slow_scatter
from forensics.curves.severity import Aftermath, aftermath, jump_of, mann_kendall, severity_of, still_rising
from forensics.curves.trend import inflation, lag_one

HOT = 4.0  # z of a record that counts towards the weight of an event
LEAST = 60  # records of a trend
WANDERS = 1.4  # scatter of means over stretches by what independent records would give: white noise, AR(1) up to 0.7 and heavy tails stay below


@dataclass(frozen=True)
class Excursion:
    """One or several scan events close together, as record indices.

    Attributes:
        onset, stop: half-open.
        closed: how the last part closed.
        scale: robust sd of the first part's baseline.
        up, down: indices of the highest and the lowest record over the trend.
        hot_up, hot_down: records beyond HOT in each direction.
        whole: end of the last excursion cut from the same stretch: what an excursion left is looked for after it.
        returns: whether the stretch came back to the trend.
        base: level over the trend on which it sits, left by an excursion before it in the same stretch.
    """

    onset: int
    stop: int
    closed: int
    scale: float
    up: int
    down: int
    hot_up: int
    hot_down: int
    whole: int
    returns: bool
    base: float = 0.0


def excursions(scan: Scan, merge_steps: int) -> list[Excursion]:
    """Scan events as excursions: merged where one begins within `merge_steps` of the end of the other and one of them is a dip, split at calm stretches."""
    groups: list[list[int]] = []
    for i, row in enumerate(scan.rows):
        if groups:
            before = scan.rows[groups[-1][-1]]
            near = scan.step[int(row[0])] - scan.step[int(before[2]) - 1] <= merge_steps
            if near and int(before[3]) != ADOPTED and (row[11] < 0 or before[11] < 0):
                groups[-1].append(i)
                continue
        groups.append([i])
    return [x for rows in groups for x in _excursion(scan, rows)]


def _excursion(scan: Scan, rows: list[int]) -> list[Excursion]:
    onset, stop = int(scan.rows[rows[0]][0]), int(scan.rows[rows[-1]][2])
    closed, scale = int(scan.rows[rows[-1]][3]), float(scan.rows[rows[0]][6])
    calm = _cuts(scan.z[onset:stop]) if len(rows) == 1 and closed == CLOSED else np.zeros(0, dtype=np.int64)
    cuts = [onset, *(np.unique(np.concatenate([calm, _jumps(scan.z[onset:stop])])) + onset), stop]
    found: list[Excursion] = []
    for a, b in zip(cuts, cuts[1:], strict=False):
        z = scan.z[a:b]
        if closed != OPEN or b < stop:
            z = z[: _tail(z)]
        found.append(
            Excursion(
                a,
                a + len(z),
                closed if b == stop else CLOSED,
                scale,
                a + int(np.argmax(z)),
                a + int(np.argmin(z)),
                int((z > HOT).sum()),
                int((z < -HOT).sum()),
                stop,
                closed == CLOSED,
            )
        )
    if closed == CLOSED:
        return [replace(x, whole=found[-1].stop) for x in found]
    over = scan.y - scan.expected
    return [x if x.onset == onset else replace(x, base=float(np.median(over[max(onset, x.onset - 50) : x.onset]))) for x in found]


def _jumps(z: np.ndarray) -> np.ndarray:
    """Where a second event begins on a level that was shifted already: a record ten sd above the fifteen before it, after a stretch of at least twenty.

    What comes back from a dip must stand that tall over the trend: that a loss returns when clean data do is the end of one event, not a second one.
    """
    cuts: list[int] = []
    for t in range(20, len(z) - 1):
        level = max(0.0, float(np.median(z[t - 15 : t])))
        if z[t] - level >= max(10.0, level) and z[t + 1] - level >= 3.0 and (not cuts or t - cuts[-1] >= 20):
            cuts.append(t)
    return np.array(cuts, dtype=np.int64)


def _cuts(z: np.ndarray) -> np.ndarray:
    """Where a second peak begins: at least six records between two peaks are calm, in themselves or against the peaks."""
    tall = np.flatnonzero(np.abs(z) >= 6.0)
    cuts = []
    for a, b in zip(tall, tall[1:], strict=False):
        between = z[a + 1 : b]
        quiet = max(0.7, min(2.0, 0.1 * min(abs(z[a]), abs(z[b]))))
        if len(between) >= 6 and abs(float(between[-6:].mean())) < quiet:
            cold = np.flatnonzero(np.abs(between) < 2.0)
            cuts.append(int(a + 2 + cold[-1]) if len(cold) else int(b))
    return np.array(cuts, dtype=np.int64)


def _tail(z: np.ndarray) -> int:
    """Records until the following ten are calm: their mean is, and not because a peak and a dip cancel."""
    hot = np.flatnonzero(np.abs(z) >= 2.0)
    if not len(hot):
        return len(z)
    cut = np.clip(z, -6, 6)
    c, size = (np.concatenate([[0.0], np.cumsum(x)]) for x in (cut, np.abs(cut)))
    for i in range(int(np.argmax(np.abs(z))) + 1, len(z)):
        j = min(i + 10, len(z))
        if abs(c[j] - c[i]) / max(1, j - i) < 1.0 and size[j] - size[i] < 2.0 * (j - i):
            return i
    return len(z)


def loss_events(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """Spikes, dips, level shifts and one-step outliers of a loss."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss for a fitted baseline"
    found: list[Event] = []
    slows = flattening(scan)
    groups, stays = _there_and_back(ctx, scan, metric, [x for x in excursions(scan, ctx.settings.loss.merge_steps) if not slows[x.onset]])
    found.extend(stays)
    strong = [x for x in groups if max(x.hot_up, x.hot_down) >= 3 or x.closed != CLOSED]
    use = scan.event != -1
    for x in strong:
        use[x.onset : x.stop] = False
    tail = tail_level(scan)
    inside = 0
    for x in groups:
        if x.onset < inside or _steeper(ctx, scan, x):
            found.extend(_within(ctx, scan, metric, x) if x.onset >= inside else ())
            inside = max(inside, x.whole)
            continue
        until = min((other.onset for other in strong if other.onset >= x.whole and (other.closed != CLOSED or other.onset - x.stop >= 20)), default=len(scan.y))
        found.extend(_read(ctx, scan, metric, x, max(until, x.stop, x.whole), use, tail))
    found.extend(_outliers(scan, metric))
    return _texture(_started(ctx, scan, found))


def _there_and_back(ctx: Context, scan: Scan, metric: str, groups: list[Excursion]) -> tuple[list[Excursion], list[Event]]:
    """A level that was taken for the new one and left again for the old: one long dip or spike instead of two shifts.

    Returns:
        the other excursions, and an event for each such stay.
    """
    left, stays = [], []
    skip = False
    for x, back in zip(groups, [*groups[1:], None], strict=False):
        stay = None if skip or back is None or x.closed != ADOPTED or back.closed == CLOSED else _stay(ctx, scan, metric, x, back)
        if stay is not None:
            stays.append(stay)
        elif not skip:
            left.append(x)
        skip = stay is not None
    return left, stays


def _stay(ctx: Context, scan: Scan, metric: str, x: Excursion, back: Excursion) -> Event | None:
    """The event from one excursion to the opposite one, where the curve goes on after it as before; None where it does not."""
    before, after = np.arange(max(0, x.onset - 400), x.onset), np.arange(back.onset + 10, min(len(scan.y), back.onset + 400))
    inside = scan.y[x.onset : back.onset]
    if min(len(before), len(after)) < 30 or not len(inside):
        return None
    depth = float(np.median(inside) - (np.median(scan.y[before[-30:]]) + np.median(scan.y[after[:30]])) / 2)
    jump, se = jump_of(scan.step, scan.y, before, after)
    if abs(jump) + 2 * se > 0.3 * abs(depth) or abs(depth) < 2 * x.scale:
        return None
    peak = x.onset + int(np.argmin(inside) if depth < 0 else np.argmax(inside))
    share = abs(depth) / max(abs(float(np.median(scan.y[before[-30:]]))), 1e-9)
    tall = share >= (ctx.settings.loss.dip_share if depth < 0 else ctx.settings.loss.alarm_share)
    start, stop = int(scan.step[x.onset]), int(scan.step[back.onset - 1]) + 1
    return Event(
        metric,
        "dip" if depth < 0 else "spike",
        "alarm" if tall else "notice",
        start,
        stop,
        int(scan.step[peak]),
        "slow" if depth > 0 else "returned",
        depth,
        abs(depth) / x.scale,
        jump,
        stop - start,
        evidence={
            "hot_records": float(back.onset - x.onset),
            "scale": x.scale,
            "records_after": float(len(after)),
            "residual_low": jump - 2 * se,
            "residual_high": jump + 2 * se,
        },
    )


def _started(ctx: Context, scan: Scan, events: list[Event]) -> list[Event]:
    """Leave out what the start-up does by itself: before the judged part only sudden, large excursions count, and those as notices where they came back."""
    kept = []
    for e in events:
        if e.start < ctx.judged_from:
            i, j = np.searchsorted(scan.step, [e.start, e.stop or e.start + 1])
            z = scan.z[i:j] * np.sign(e.height or 0.0)
            if (e.sigma or 0.0) < 10 or (len(z) > 30 and float(np.median(z[10:30])) < 0.5 * float(np.median(z[-20:]))):
                continue
            if e.severity in ("returned", "none"):
                e.level = "notice"
        kept.append(e)
    return kept


def _texture(events: list[Event]) -> list[Event]:
    """Dips that recur with like depth, and long stretches above and below the trend in turn, are the texture of the data order: notices."""
    dips = [e for e in events if e.shape == "dip" and e.evidence.get("hot_records", 0.0) >= 3]
    _demote(dips, dips, 3)
    broad = [e for e in events if e.last - e.start >= 60 and e.shape in ("spike", "dip", "level_shift") and (e.sigma or 0.0) < 15]
    if {(e.height or 0.0) > 0 for e in broad} == {True, False}:
        _demote(broad, broad, 3)
    return events


def _demote(events: list[Event], among: list[Event], least: int) -> None:
    """Make notices of events that are not much larger than at least so many like them."""
    for e in events:
        others = [abs(d.height or 0.0) for d in among if d is not e]
        if len(others) >= least and abs(e.height or 0.0) < 2.5 * float(np.median(others)):
            e.level = "notice"
            e.evidence["like_dips" if e.shape == "dip" else "like_stretches"] = float(len(others))


def flattening(scan: Scan) -> np.ndarray:
    """Bool [n]: records of scan events in which the loss only falls more slowly than before: it moves off the trend little by little and rises at no place."""
    mark = np.zeros(len(scan.y), dtype=bool)
    for row in scan.rows:
        a, b = int(row[0]), int(row[2])
        if row[11] < 0 or b - a < 32 or a < 20:
            continue
        z = scan.z[a:b]
        gradual = float(np.median(z[4:12])) <= 0.5 * float(np.median(z[-max(8, len(z) // 4) :]))
        level = float(np.median(scan.y[a - 20 : a]))
        top = max(float(np.median(scan.y[i : i + 9])) for i in range(a, b - 8, 4))
        tall = scan.y[a:b] > level + 6 * row[6]
        if gradual and top <= level + 2 * row[6] and tall.mean() <= 0.01 and not (tall[1:] & tall[:-1]).any():
            mark[a:b] = True
    return mark


def lasting(scan: Scan, least: float = 0.0) -> np.ndarray:
    """Bool [n]: records of scan events that never closed and whose later half stands at least so many sd off, a mere slowing left out."""
    mark = np.zeros(len(scan.y), dtype=bool)
    slows = flattening(scan)
    for row in scan.rows:
        a, b = int(row[0]), int(row[2])
        if not slows[a] and int(row[3]) != CLOSED and abs(float(np.median(scan.z[(a + b) // 2 : b]))) >= least:
            mark[a:b] = True
    return mark


def tail_level(scan: Scan) -> float:
    """The upward z that one ordinary record in a thousand exceeds: 3.1 for normal noise, much more for heavy tails and for noise that wanders slowly."""
    z = scan.z[scan.first :][scan.event[scan.first :] <= 0]
    if len(z) < 300:
        return 3.1
    slow = slow_scatter(z) / inflation(lag_one(z))
    return max(3.1, float(np.quantile(z, 0.999)) if len(z) >= 500 else 3.1) * max(1.0, slow / WANDERS)


def _read(ctx: Context, scan: Scan, metric: str, x: Excursion, until: int, use: np.ndarray, tail: float) -> list[Event]:
    """The events of one excursion: its main shape, and the opposite one where both signs are strong."""
    over = scan.y - scan.expected
    up, down = scan.z[x.up], -scan.z[x.down]
    upward = up >= down or (x.hot_up >= 3 and up >= 0.7 * down)
    height = float(over[x.up] if upward else over[x.down])
    after = aftermath(scan.step, scan.y, x.onset, max(x.stop, x.whole), until, height, x.scale, ctx.settings.loss, use)
    if x.base and after.residual is not None:
        after = replace(after, residual=after.residual - x.base, low=after.low - x.base, high=after.high - x.base)
    duration = int(scan.step[x.stop - 1] - scan.step[x.onset]) + 1
    severity = severity_of(after, ctx.optimizer, duration, _diverges(ctx, scan, x))
    if severity == "unknown" and x.closed == OPEN and duration > 100 and (left := float(np.median(over[-max(5, (x.stop - x.onset) // 4) :]))) > after.limit:
        severity, after = "level_shift", replace(after, residual=left)
    events = [_event(ctx, scan, metric, x, upward, height, after, severity, tail)]
    other = x.hot_down >= 3 if upward else x.hot_up >= 3
    if other:
        events.append(_event(ctx, scan, metric, x, not upward, float(over[x.down] if upward else over[x.up]), after, severity, tail))
    return events


def _event(ctx: Context, scan: Scan, metric: str, x: Excursion, upward: bool, height: float, after: Aftermath, severity: str, tail: float) -> Event:
    """One row."""
    rule = ctx.settings.loss
    peak, hot = (x.up, x.hot_up) if upward else (x.down, x.hot_down)
    fell = after.residual is not None and after.high < -after.limit and x.closed == ADOPTED
    if severity == "level_shift" and (upward or x.hot_up >= 1):
        shape = "level_shift"
    elif fell:
        shape, severity = "level_shift", "none"
    else:
        shape = ("divergence" if severity == "diverging" else "spike") if upward else "dip"
    level = max(abs(float(scan.expected[peak])), 1e-9)
    began = departure(scan, x.onset, peak)
    if shape == "dip":
        alarm = hot >= 8 and _sustained(scan, x) >= rule.dip_share
    elif shape == "level_shift":
        alarm = not fell
    else:
        share = height / level
        alarm = (
            severity == "diverging"
            or (share >= rule.alarm_share and _weight(scan, x, max(HOT, tail)) >= rule.alarm_hot)
            or (share >= 10 * rule.alarm_share and hot >= 2 and scan.z[peak] > 1.5 * tail)
        )
    return Event(
        metric,
        shape,
        "alarm" if alarm else "notice",
        int(scan.step[x.onset if began is None or began.high >= x.onset else began.best]),
        int(scan.step[x.stop - 1]) + 1,
        int(scan.step[peak]),
        severity,
        height,
        abs(height) / x.scale,
        after.residual,
        _recovery(scan, x, severity),
        evidence={
            "hot_records": float(hot),
            "scale": x.scale,
            "residual_low": after.low,
            "residual_high": after.high,
            "residual_limit": after.limit,
            "records_after": float(after.records),
            "expected": float(scan.expected[peak]),
            "value": float(scan.y[peak]),
            **({"onset_low": float(scan.step[began.low]), "onset_high": float(scan.step[began.high])} if began is not None else {}),
            **({"t50": float(after.t50)} if after.t50 is not None else {}),
            **({"t90": float(after.t90)} if after.t90 is not None else {}),
            "area": float(((scan.y - scan.expected)[x.onset : x.stop] * np.gradient(scan.step.astype(float))[x.onset : x.stop]).sum())
            if x.stop - x.onset > 1
            else height,
        },
    )


def _abrupt(scan: Scan, x: Excursion) -> bool:
    """Whether a fall got to half of its depth within a dozen records."""
    z = scan.z[x.onset : x.stop]
    return bool(float(np.median(z[4:12])) <= 0.5 * float(np.median(z[-max(8, len(z) // 4) :]))) if len(z) >= 32 else True


def _steeper(ctx: Context, scan: Scan, x: Excursion) -> bool:
    """Whether the descent only became steeper, little by little or with a step of the learning rate: no event."""
    return not x.returns and x.hot_up <= 2 and x.hot_down > x.hot_up and (not _abrupt(scan, x) or _lr_falls(ctx, scan, x))


def _within(ctx: Context, scan: Scan, metric: str, x: Excursion) -> list[Event]:
    """What happens while the loss goes down more steeply: the stretch is scanned by itself, and what leaves its own trend and comes back counts."""
    if x.whole - x.onset < 2 * LEAST:
        return []
    part = scan_of(scan.step[x.onset : x.whole], scan.y[x.onset : x.whole], ctx.settings.loss, ctx.settings.loss, LEAST)
    use, tail = part.event == 0, tail_level(part)
    tall = [(i, max(float(part.z[i.up]), -float(part.z[i.down]))) for i in excursions(part, 0) if max(i.hot_up, i.hot_down) >= 3]
    inside = [i for i, top in tall if top >= 2 * HOT and (i.returns or (top >= 3 * HOT and _abrupt(part, i)))]
    return [e for i in inside for e in _read(ctx, part, metric, i, len(part.y), use, tail)]


def _lr_falls(ctx: Context, scan: Scan, x: Excursion) -> bool:
    """Whether the learning rate falls to under 0.7 of what it was within the dozen records in which the loss fell: the descent is the schedule's."""
    lr = ctx.curves.get("learning_rate")
    last = int(scan.step[min(x.stop, x.onset + 12) - 1])
    return lr is not None and len(lr) > 1 and bool(lr.value[lr.at(last)] < 0.7 * lr.value[max(0, lr.at(int(scan.step[x.onset])) - 1)])


def _diverges(ctx: Context, scan: Scan, x: Excursion) -> bool:
    """Rule 13: the event is open and climbs, or climbed all along, or it never came back and the loss is above what it was at a tenth of the training."""
    if x.closed == CLOSED:
        return False
    if x.closed == OPEN and still_rising(scan.step, scan.y, x.onset):
        return True
    if x.stop - x.onset >= 30:
        parts = np.array([np.median(p) for p in np.array_split(scan.y[x.onset : x.stop], min(20, (x.stop - x.onset) // 4))])
        side = max(2, len(parts) // 4)
        rise, over = float(parts[-side:].mean() - parts[:side].mean()), scan.y[x.onset : x.stop] - scan.expected[x.onset : x.stop]
        if mann_kendall(parts)[0] > 0.7 and rise > max(2 * x.scale, 0.15 * float(np.median(over[-len(over) // 4 :]))):
            return True  # the loss itself, not only its distance to the trend, goes up all along
    tenth = scan.step[0] + 0.1 * (scan.step[-1] - scan.step[0]) if scan.step[0] <= 50 else np.inf
    if scan.step[x.onset] <= tenth:
        return False
    early = float(np.median(scan.y[max(0, np.searchsorted(scan.step, tenth) - 5) : np.searchsorted(scan.step, tenth) + 5]))
    last = float(np.median(scan.y[max(x.stop - 20, x.onset) : x.stop]))
    return min(last, float(np.median(scan.y[-20:]))) - early > 6 * x.scale


def _recovery(scan: Scan, x: Excursion, severity: str) -> int | None:
    return int(scan.step[x.stop - 1] - scan.step[x.onset]) + 1 if severity in ("returned", "slow", "none") and x.stop < len(scan.y) else None


def _weight(scan: Scan, x: Excursion, limit: float) -> int:
    """Most records above a limit within any ten in a row."""
    hot = (scan.z[x.onset : x.stop] > limit).astype(np.int64)
    c = np.concatenate([[0], np.cumsum(hot)])
    return int((c[np.minimum(np.arange(len(hot)) + 10, len(hot))] - c[:-1]).max()) if len(hot) else 0


def _sustained(scan: Scan, x: Excursion) -> float:
    """Depth of a dip that lasted: the median over its deepest ten records in a row, as a share of the level."""
    share = (scan.expected - scan.y)[x.onset : x.stop] / np.maximum(np.abs(scan.expected[x.onset : x.stop]), 1e-9)
    width = min(10, len(share))
    return max((float(np.median(share[i : i + width])) for i in range(0, len(share) - width + 1, max(1, width // 2))), default=0.0)


def _outliers(scan: Scan, metric: str) -> list[Event]:
    """One-step outliers, each a notice."""
    rows = np.flatnonzero(scan.event == -1)
    events = []
    for i in rows:
        height = float(scan.y[i] - scan.expected[i])
        events.append(
            Event(
                metric,
                "outlier" if height > 0 else "dip",
                "notice",
                int(scan.step[i]),
                int(scan.step[i]) + 1,
                int(scan.step[i]),
                "returned",
                height,
                float(abs(scan.z[i])),
                0.0,
                1,
                evidence={"value": float(scan.y[i]), "expected": float(scan.expected[i]), "scale": float(scan.scale[i])},
            )
        )
    return events
