"""The exact method over blocks of a sweep's rows: every part of the work once per distinct input, then arrays.

- each part of the scenario is validated once per distinct combination of the axes that touch it
- what a sequence does from round to round is computed once per distinct drafting, behaviour and lengths
- the rounds are computed in arrays over all points that share a batch size, costs and a setting

A row for which this is not enough (an invalid scenario, a rule that looks at the batch, a static batch, what the
exact model refuses) takes the long way through `evaluate`: both ways give the same answer, refusals included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ssdsim.caveats import beyond_limits
from ssdsim.costs.models import Costs
from ssdsim.design_point import DesignPoint, resolve
from ssdsim.errors import DomainError
from ssdsim.evaluate import exact_notes
from ssdsim.exact import Setting, batch_columns, setting_of
from ssdsim.planning.plan import SweepPlan
from ssdsim.planning.results import OK, Columns, joined, piece_of_columns, piece_of_rows
from ssdsim.planning.slot_table import NOT_COVERED, SlotTable
from ssdsim.planning.stages import Stage, axes_beyond, axes_touching
from ssdsim.quantities import LABELS
from ssdsim.scenario import FallbackKind, Mode, Placement, Run, Scenario, Slo, Workload
from ssdsim.schema import Document, validate

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_COSTS = (("pair", "costs"), ("pair", "costs_when_sampled"))
"""Where costs lie; the temperature decides between them."""
_FREE = (
    ("name",),
    ("mode",),
    ("placement",),
    ("slo",),
    *_COSTS,
    ("workload", "batch_size"),
    ("run", "seed"),
    ("run", "num_rounds"),
    ("run", "warmup_rounds"),
)
"""Fields that neither a check across parts nor a sequence's rounds depend on (a test compares with the long way)."""

_MODES = tuple(Mode)

Part = TypeVar("Part", bound=Document)


class _Frame(Document):
    """The fields of a scenario that are no part of their own."""

    name: str
    mode: Mode


class _CostsOnly(Document):
    costs: Costs


class _Variant(NamedTuple):
    """One distinct drafting, behaviour and lengths."""

    point: DesignPoint
    setting: Setting
    """For SSD and the base's batch size."""
    needs_long_way: bool
    beyond_limits: str
    """What it extrapolates, the batch size aside."""


class _Points(NamedTuple):
    """Points that arrays may answer; each field is an array over them."""

    variant: IntArray
    costs: IntArray
    mode: IntArray
    """Index into `_MODES`."""
    batch_size: IntArray
    num_draft_devices: IntArray
    num_devices: IntArray

    def take(self, index: IntArray | BoolArray) -> _Points:
        return _Points(*(column[index] for column in self))


def exact_piece(plan: SweepPlan, rows: IntArray, long_way: Callable[[SweepPlan, int], Mapping[str, Any]]) -> Columns:
    """The answers of the exact method for `rows`; `long_way` computes one row by itself."""
    columns, answered = _grid_of(plan).evaluate(rows // len(plan.methods))
    quick = piece_of_columns(plan, rows[answered], columns)
    if answered.all():
        return quick
    slow = [long_way(plan, row) for row in rows[~answered].tolist()]
    return joined([quick, piece_of_rows(plan, slow)])


def cheapest_order(plan: SweepPlan, rows: IntArray) -> IntArray:
    """An order of `rows` in which those that are computed in one array lie together."""
    axes = axes_touching(plan.grid, [*_COSTS, ("workload", "temperature"), ("workload", "batch_size")])
    if not axes:
        return np.arange(len(rows))
    steps = plan.grid.steps(rows // len(plan.methods))
    codes = np.ravel_multi_index([steps[axis] for axis in axes], [len(plan.grid.axes[axis]) for axis in axes])
    return np.argsort(codes, kind="stable")


@lru_cache(maxsize=1)
def _grid_of(plan: SweepPlan) -> _ExactGrid:
    """Kept from block to block."""
    return _ExactGrid(plan)


class _ExactGrid:
    def __init__(self, plan: SweepPlan) -> None:
        grid = plan.grid
        self._grid = grid
        self._variants = Stage(plan, axes_beyond(grid, _FREE), _variant)
        self._costs = Stage(plan, axes_touching(grid, [*_COSTS, ("workload", "temperature")]), _valid_costs)
        self._frames = Stage(plan, axes_touching(grid, [("name",), ("mode",)]), _valid_frame)
        self._workloads = _part_stage(plan, "workload", Workload)
        self._placements = _part_stage(plan, "placement", Placement)
        self._others: list[Stage[Any]] = [_part_stage(plan, "run", Run), _part_stage(plan, "slo", Slo)]
        self._tables = {mode: SlotTable(mode) for mode in _MODES}
        self._slot_rows = np.empty((0, len(_MODES)), dtype=np.int64)
        """[variants, modes]: where a variant's slot numbers lie."""

    def evaluate(self, points: IntArray) -> tuple[dict[str, Any], BoolArray]:
        """Columns of those points that arrays can answer, and which points these are."""
        where, answered = self._locate(points)
        columns = {name: np.full(len(where.variant), np.nan) for name in LABELS}
        found = np.zeros(len(where.variant), dtype=bool)
        for group in self._groups(where):
            found[group] = self._answer(where.take(group), group, columns)
        answered[answered] = found
        where = where.take(found)
        return {
            "mode": np.array([str(mode) for mode in _MODES], dtype=object)[where.mode],
            "status": np.full(len(where.mode), OK, dtype=object),
            "notes": self._notes(where),
            "extrapolated": self._extrapolated(where),
            **{name: column[found] for name, column in columns.items()},
        }, answered

    def _locate(self, points: IntArray) -> tuple[_Points, BoolArray]:
        """The valid points in numbers, and which of `points` these are."""
        steps, count = self._grid.steps(points), len(points)
        read: list[Stage[Any]] = [self._variants, self._costs, self._frames, self._workloads, self._placements]
        stages = [*read, *self._others]
        at = [stage.of(steps, count) for stage in stages]
        valid = np.logical_and.reduce([_known(s.results)[index] for s, index in zip(stages, at, strict=True)])
        self._extend_slots()
        valid[valid] = (self._slot_rows[at[0][valid]] != NOT_COVERED).all(axis=1)
        variant, costs, frame, workload, placement = (index[valid] for index in at[: len(read)])
        hardware = [v.point.scenario.pair.hardware if v else None for v in self._variants.results]
        placed = self._placements.results
        target_tp = _first_given(placed, "target_tp", placement, hardware, variant)
        draft_tp = _first_given(placed, "draft_tp", placement, hardware, variant)
        draft_devices = _gather(placed, "num_draft_devices", placement)
        modes = np.array([_MODES.index(f.mode) if f else 0 for f in self._frames.results])[frame]
        batch_size = _gather(self._workloads.results, "batch_size", workload)
        speculators = np.where(modes == _MODES.index(Mode.SSD), draft_tp * draft_devices, 0)
        return _Points(variant, costs, modes, batch_size, draft_devices, target_tp + speculators), valid

    def _extend_slots(self) -> None:
        """Slot numbers of the variants that are new, all at once."""
        new = self._variants.results[len(self._slot_rows) :]
        rows = np.full((len(new), len(_MODES)), NOT_COVERED, dtype=np.int64)
        quick = [i for i, variant in enumerate(new) if variant is not None and not variant.needs_long_way]
        points = [variant.point for i in quick if (variant := new[i]) is not None]
        for number, mode in enumerate(_MODES):
            rows[quick, number] = self._tables[mode].rows(points)
        self._slot_rows = np.concatenate([self._slot_rows, rows])

    def _groups(self, where: _Points) -> list[IntArray]:
        """Positions of the points that share batch size, costs and setting."""
        settings = [v.setting._replace(batch_size=0) if v else None for v in self._variants.results]
        numbers = {setting: i for i, setting in enumerate(dict.fromkeys(settings))}
        setting = np.array([numbers[s] for s in settings], dtype=np.int64)[where.variant]
        code = (setting * len(self._costs.results) + where.costs) * (where.batch_size.max(initial=0) + 1)
        _, inverse, sizes = np.unique(code + where.batch_size, return_inverse=True, return_counts=True)
        return np.split(np.argsort(inverse, kind="stable"), np.cumsum(sizes)[:-1]) if len(sizes) else []

    def _answer(self, where: _Points, group: IntArray, columns: Columns) -> BoolArray:
        """Fill the columns of one group at the positions `group`; which of its points were answered."""
        by_mode: dict[Mode, Columns] = {}
        found = np.ones(len(group), dtype=bool)
        for number, mode in enumerate(_MODES):
            chosen = where.mode == number
            everyone = mode is not Mode.SSD  # AR and SD are also what the others are compared with
            if not (everyone or chosen.any()):
                continue
            part = where if everyone else where.take(chosen)
            try:
                values = self._batch(part, mode)
            except DomainError:
                found &= ~chosen
                continue
            by_mode[mode] = values
            for name in columns.keys() & values.keys():
                columns[name][group[chosen]] = values[name][chosen] if everyone else values[name]
        rate = columns["tokens_per_s"][group]
        columns["tokens_per_s_per_request"][group] = rate / where.batch_size
        columns["tokens_per_s_per_device"][group] = rate / where.num_devices
        columns["speedup_over_ar"][group] = rate / by_mode[Mode.AR]["tokens_per_s"]
        columns["speedup_over_sd"][group] = rate / by_mode[Mode.SD]["tokens_per_s"]
        return found

    def _batch(self, where: _Points, mode: Mode) -> Columns:
        """The exact columns of points of one group under `mode`."""
        slots = self._tables[mode].take(self._slot_rows[where.variant, _MODES.index(mode)])
        variant, costs = self._variants.results[where.variant[0]], self._costs.results[where.costs[0]]
        assert variant is not None
        assert costs is not None
        setting = variant.setting._replace(mode=mode, batch_size=int(where.batch_size[0]))
        return batch_columns(slots, setting, costs.costs, where.num_draft_devices)

    def _notes(self, where: _Points) -> NDArray[np.object_]:
        texts = [exact_notes(c.costs) if c else () for c in self._costs.results]
        return np.array(["; ".join(text) or None for text in texts], dtype=object)[where.costs]

    def _extrapolated(self, where: _Points) -> NDArray[np.object_]:
        """The same text as by the long way: the batch size first, then the rest."""
        variants = self._variants.results
        limits = [v.point.scenario.pair.limits.max_batch_size if v else None for v in variants]
        limit = np.array([math.inf if value is None else value for value in limits])[where.variant]
        rest = np.array([v.beyond_limits if v else "" for v in variants], dtype=object)[where.variant]
        batch = np.where(where.batch_size > limit, "batch size", "").astype(object)
        both = np.where((batch != "") & (rest != ""), ", ", "").astype(object)
        text: NDArray[np.object_] = batch + both + rest
        text[text == ""] = None
        return text


def _variant(data: dict[str, Any]) -> _Variant:
    scenario = validate(Scenario, data)
    kind = scenario.drafting.fallback.kind
    beyond = (what for what in beyond_limits(scenario) if what != "batch size")
    by_rule = kind in {FallbackKind.AUTO, FallbackKind.THRESHOLD}
    point = resolve(scenario)
    return _Variant(
        point=point,
        setting=setting_of(point, Mode.SSD, kind),
        needs_long_way=by_rule or scenario.workload.arrivals == "static",
        beyond_limits=", ".join(beyond),
    )


def _valid_costs(data: dict[str, Any]) -> _CostsOnly:
    """The costs at the point's temperature; one that is no number is refused with its workload."""
    pair, temperature = data["pair"], data["workload"]["temperature"]
    warm = isinstance(temperature, int | float) and temperature > 0
    sampled = pair.get("costs_when_sampled") if warm else None
    return validate(_CostsOnly, {"costs": pair["costs"] if sampled is None else sampled})


def _valid_frame(data: dict[str, Any]) -> _Frame:
    return validate(_Frame, {"name": data["name"], "mode": data["mode"]})


def _part_stage(plan: SweepPlan, name: str, model: type[Part]) -> Stage[Part]:
    return Stage(plan, axes_touching(plan.grid, [(name,)]), lambda data: validate(model, data[name]))


def _known(results: Sequence[object]) -> BoolArray:
    return np.array([result is not None for result in results])


def _gather(results: Sequence[Any], field: str, index: IntArray) -> IntArray:
    return np.array([getattr(r, field) if r is not None else 0 for r in results], dtype=np.int64)[index]


def _first_given(
    first: Sequence[Any], field: str, index: IntArray, second: Sequence[Any], second_index: IntArray
) -> IntArray:
    """`field` of `first` where it is given there, else of `second`."""
    given = np.array([(getattr(r, field) or 0) if r is not None else 0 for r in first], dtype=np.int64)[index]
    return np.where(given > 0, given, _gather(second, field, second_index))
