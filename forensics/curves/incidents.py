"""Events that belong together: one incident per thing that happened.

Events whose starts lie within a few steps of each other, or one of which falls into the other, share an incident; its leader is the loss event that
matters most. Long events of other kinds (a leak, a plateau) do not swallow what happens while they last.
"""

from __future__ import annotations

from forensics.curves.event import Event

NEAR = 5  # steps
CAUSES_AHEAD = 40  # steps by which a collapse of the loss scale or a norm may lead (GLM-130B: 10 to 40)
LONG = {
    "plateau",
    "memory_leak",
    "memory_near_limit",
    "memory_periodic",
    "throughput_sawtooth",
    "periodic",
    "noise_growth",
    "slow_rank",
    "val_gap",
    "clip_fault",
    "drift",
    "norm_rise",
    "stuck",
}
BETTER = ("spike", "dip", "level_shift", "divergence", "drift", "plateau", "composition_shift")  # say more than a small shift found in stretches
RANK = {
    s: i
    for i, s in enumerate(
        (
            "divergence",
            "nonfinite",
            "level_shift",
            "drift",
            "spike",
            "dip",
            "composition_shift",
            "scale_collapse",
            "lr_jump",
            "schedule_mismatch",
            "clip_fault",
            "router_collapse",
            "plateau",
            "periodic",
            "val_gap",
            "noise_growth",
            "outlier",
            "update_norm",
            "norm_spike",
            "norm_rise",
            "norm_vanish",
            "aux_loss",
            "throughput_drop",
            "slow_rank",
            "throughput_sawtooth",
            "memory_leak",
            "memory_near_limit",
            "memory_periodic",
            "batch_change",
            "stuck",
            "gap",
        )
    )
}


def group(events: list[Event]) -> list[list[Event]]:
    """Events by incident, both in order of the start; sets `incident` from 0."""
    events = sorted(events, key=lambda e: (e.start, RANK.get(e.shape, 99), e.metric))
    incidents: list[list[Event]] = []
    for e in events:
        home = next((i for i in reversed(incidents[-60:]) if any(_together(a, e) for a in i)), None)
        if home is None:
            incidents.append([e])
        else:
            home.append(e)
    for number, members in enumerate(incidents):
        for e in members:
            e.incident = number
    return incidents


def _together(a: Event, b: Event) -> bool:
    """Whether two events are one thing."""
    if "gap" in (a.shape, b.shape) or (a.shape == b.shape == "outlier"):
        return False
    if _long(a) or _long(b):
        return _long(a) and _long(b) and a.shape != b.shape and abs(a.start - b.start) <= NEAR and a.metric.split("/")[0] == b.metric.split("/")[0]
    ahead = CAUSES_AHEAD if a.shape in ("scale_collapse", "lr_jump") and b.metric.startswith("train_loss") else NEAR
    if abs(a.start - b.start) <= ahead:
        return True
    return a.metric != b.metric and a.start <= b.start <= a.last and a.last - a.start <= 2000


def _long(e: Event) -> bool:
    """Whether an event says something of a long stretch."""
    return e.shape in LONG or (e.subcause or "").startswith("norm_spikes_") or e.metric.startswith("regressed_loss/")


def leader(members: list[Event]) -> Event:
    """The event an incident is called after: alarms first, then by what matters most, then by size."""
    return min(members, key=lambda e: (e.level != "alarm", RANK.get(e.shape, 99), -(e.sigma or 0.0), e.start))


def dedupe(events: list[Event]) -> list[Event]:
    """Leave out what another event of the same curve says better.

    A slow rise or a flat stretch may trip the drift rule at its beginning: then the small level shift goes. Beside a tall shift it is the plateau or drift
    that goes, as an artefact of fitting lines across the shift.
    """
    lasting = [e for e in events if e.metric == "train_loss" and e.shape in ("divergence", "level_shift") and e.severity in ("level_shift", "diverging")]
    slow = [e for e in events if e.metric == "train_loss" and e.shape in ("drift", "plateau")]
    gone: set[int] = set()
    for e in events:
        small = e.shape == "level_shift" and e.metric == "train_loss" and "standard_errors" in e.evidence
        if small and any(o is not e and o.metric == e.metric and o.shape in BETTER and _covers(o, e) for o in events):
            gone.add(id(e))
    lasting = [e for e in lasting if id(e) not in gone]
    for s in slow:
        for o in lasting:
            if o.start > s.last or o.last < s.start:
                continue
            small = o.shape == "level_shift" and (abs(o.residual or 0.0) < 0.5 * abs(s.height or 0.0) or o.evidence.get("hot_records", 0.0) < 10)
            gone.add(id(o) if small else id(s))
    gone |= _capacity(events)
    for e in events:
        if e.shape == "level_shift" and e.cause == "composition" and any(o is not e and o.start <= e.last and o.last >= e.start for o in lasting):
            gone.add(id(e))
    return [e for e in events if id(e) not in gone]


def _capacity(events: list[Event]) -> set[int]:
    """A plateau that the size of the model explains is the plateau itself: its numbers go there, its word where no schedule has the first."""
    gone: set[int] = set()
    flat = [e for e in events if e.shape == "plateau"]
    found = [e for e in flat if e.subcause == "plateau_capacity"]
    for e in found:
        whole = next((o for o in flat if o not in found and o.metric == e.metric and o.start <= e.last and o.last >= e.start), None)
        if whole is not None:
            whole.evidence |= e.evidence
            if whole.subcause is None:
                whole.level, whole.severity, whole.subcause, whole.confidence = e.level, e.severity, e.subcause, e.confidence
            gone.add(id(e))
    return gone


def _covers(o: Event, e: Event) -> bool:
    """Whether an event explains a small shift: it lies at it, or it left a shift not long before."""
    left = o.severity in ("level_shift", "diverging") and o.start <= e.start <= 1.3 * o.start
    return left or (o.start - 100 <= e.last and o.last + 100 >= e.start)
