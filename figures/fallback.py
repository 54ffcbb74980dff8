"""What answers a miss (Figure 6): fallbacks against batch size, and more draft devices at batch 16."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from figures import marks, model, ours
from figures.drawing import Drawing, Point
from figures.inputs import Results
from figures.marks import Origin
from ssdsim.design_point import resolve
from ssdsim.exact.fallbacks import CriticalBatchSizes, critical_batch_sizes
from ssdsim.plotting.style import AMBER, BLUE, GREEN, GREY, ORANGE, PURPLE
from ssdsim.scenario import Mode

_PAIR = "llama-3.1-70b"
_FALLBACKS = {
    "jit": ("jit: draft now", BLUE),
    "none": ("none: propose nothing", ORANGE),
    "random": ("random tokens, verified", PURPLE),
}
_COLOURS = {**dict(_FALLBACKS.values()), "SD": GREY}
_DEVICES = (1, 2, 3, 4, 6, 8)
_BATCH_OF_DEVICES = 16
_TOTAL, _PER_DEVICE = "all devices together", "per device"
_LEFT, _RIGHT = "fallback by batch size", "draft devices at batch 16"


def draw(results: Results) -> Drawing:
    """Left: speed-up over AR against batch size at F=1. Right: at batch 16, F grows with the draft devices."""
    from matplotlib.figure import Figure

    left = [*_by_batch(), *_measured(results)]
    right = list(_by_devices())
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    axes, beside = figure.subplots(1, 2)
    marks.plot_all(axes, left, _COLOURS)
    marks.batch_axis(axes, [float(point.x) for point in left])
    axes.set_ylabel("speed-up over AR of the same batch (x)")
    axes.set_title("K=7, F=1, one draft device", fontsize="medium")
    marks.plot_all(beside, right, {_TOTAL: GREEN, _PER_DEVICE: AMBER})
    beside.set_xlabel("draft devices, and fan-out per position")
    beside.set_title("batch 16, K=7, no fallback, F = draft devices", fontsize="medium")
    beside.set_xticks(_DEVICES)
    for panel in (axes, beside):
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False, fontsize="small", loc="lower left")
    marks.legend(figure, [], [*left, *right])
    return Drawing(figure=figure, data=[*left, *right], caption=_caption(left, right))


def _by_batch() -> Iterator[Point]:
    """Speed-ups of every fallback at fan-out 1, as in the paper."""
    axes = {"workload.batch_size": model.BATCH_SIZES, "drafting.fallback.kind": tuple(_FALLBACKS)}
    table = model.sweep(_PAIR, axes, {"mode": "ssd", "drafting.fan_out.per_position": 1})
    for b in model.BATCH_SIZES:
        for kind, (label, _) in _FALLBACKS.items():
            yield Point(_LEFT, label, Origin.EXACT, b, model.at(table, "speedup_over_ar", batch_size=b, kind=kind))
        row = {"batch_size": b, "kind": "jit"}
        sd = model.at(table, "speedup_over_ar", **row) / model.at(table, "speedup_over_sd", **row)
        yield Point(_LEFT, "SD", Origin.EXACT, b, sd)


def _by_devices() -> Iterator[Point]:
    """Speed-ups over AR at batch 16, in total and per device (AR has the target's four)."""
    base = {"mode": "ssd", "batch_size": _BATCH_OF_DEVICES, "drafting.fallback.kind": "none"}
    ar = model.exact(_PAIR, Mode.AR, {"batch_size": _BATCH_OF_DEVICES}).quantities
    for devices in _DEVICES:
        drafting = {"drafting.fan_out.per_position": devices, "placement.num_draft_devices": devices}
        found = model.exact(_PAIR, Mode.SSD, {**base, **drafting}).quantities
        names = {_TOTAL: "tokens_per_s", _PER_DEVICE: "tokens_per_s_per_device"}
        for series, name in names.items():
            yield Point(_RIGHT, series, Origin.EXACT, devices, found[name].value / ar[name].value)


def _measured(results: Results) -> Iterator[Point]:
    """Our runs by fallback, over our AR of the same batch; another pair than the lines."""
    rates = ours.rates(results)
    best = ours.fastest(rates)
    shown: dict[tuple[str, int], ours.Rate] = {}
    for rate in sorted(rates, key=lambda rate: rate.value):
        kind = str(rate.run.drafting.fallback.kind)
        if rate.mode is Mode.SSD and rate.origin is Origin.MEASURED and kind in _FALLBACKS:
            shown[kind, rate.batch_size] = rate
    for (kind, b), rate in shown.items():
        ar = best.get((Mode.AR, b))
        if ar is not None:
            bounds = (None if bound is None else bound / ar.value for bound in (rate.low, rate.high))
            yield Point(_LEFT, _FALLBACKS[kind][0], Origin.MEASURED, b, rate.value / ar.value, *bounds)


def _caption(left: list[Point], right: list[Point]) -> str:
    total = {point.x: point.y for point in right if point.series == _TOTAL}
    per_device = {point.x: point.y for point in right if point.series == _PER_DEVICE}
    best = max(per_device, key=lambda devices: per_device[devices])
    sizes = critical_batch_sizes(resolve(model.scenario(_PAIR, {"drafting.fan_out.per_position": 1})))
    measured = (
        " Filled markers are our own pair, which the lines are not drawn for."
        if any(point.origin is Origin.MEASURED for point in left)
        else ""
    )
    return (
        "Llama-3.1-70B / 3.2-1B under the exact model. The paper compares drafting now with random tokens and "
        f"finds that the fast fallback wins at large batches; so does the model ({_crossing(sizes)}). Random "
        "tokens cost their verification and are never accepted: proposing nothing gives the same tokens for less. "
        "Right: the paper projects that devices keep paying at batch 16; the model has "
        f"{100 * (total[_DEVICES[-1]] / total[1] - 1):+.0f} % from one device to {_DEVICES[-1]}, and per device "
        f"{best} is best. The paper prints no numbers for either curve; beyond batch 1 and fan-out 3 the profile "
        f"is extrapolated.{measured}"
    )


def _crossing(sizes: CriticalBatchSizes) -> str:
    """Where the fast fallback takes over, by three ways of asking."""
    printed, consistent = (
        f"{found.batch_size:.1f}" if found.batch_size is not None and isfinite(found.batch_size) else found.kind
        for found in (sizes.printed, sizes.consistent)
    )
    scanned = f"from batch {sizes.scanned}" if sizes.scanned is not None else "never"
    return f"b* is {printed} as printed, {consistent} with each policy's own hit rate; scanned, {scanned}"
