"""How a forward grows with its width and its batch, from tables of measured kernels: what `profiles` scales.

Two tables of the reference data are read: step times composed from kernels (by batch and context), and single
matrix products on a fine grid of rows. Times of matrix products scatter by +-20 % from one row count to the next,
because another kernel is picked; since a product of m rows may always be padded to more rows, the time taken here for
m rows is the shortest one measured at m rows or more. It never falls with m.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROW_GRID = (1, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
"""Query tokens at which a target's dense part is tabulated."""

NEAREST_CONTEXT, FAR_CONTEXT = 1024, 4096
"""The contexts of the composed table."""

Term = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Model:
    """Shapes of one model on `tp` GPUs: what decides which measured matrix product stands for which layer."""

    name: str
    tp: int
    layers: int
    hidden: int
    query_size: int
    """Query heads times head size."""
    kv_size: int
    """Key-value heads times head size."""
    intermediate: int
    vocabulary: int

    def products(self) -> list[tuple[int, int, int]]:
        """(count, n, k) of the matrix products of one forward on one GPU."""
        tp, layers = self.tp, self.layers
        return [
            (layers, (self.query_size + 2 * self.kv_size) // tp, self.hidden),
            (layers, self.hidden, self.query_size // tp),
            (layers, 2 * self.intermediate // tp, self.hidden),
            (layers, self.hidden, self.intermediate // tp),
            (1, self.vocabulary // tp, self.hidden),
        ]


@dataclass(frozen=True)
class Kernels:
    """The two tables, in seconds, for one kind of GPU."""

    composed: dict[tuple[str, int, int, int], dict[str, float]]
    """(model, tp, batch, context) to the parts of a step."""
    products: dict[tuple[int, int], dict[int, float]]
    """(n, k) to rows to seconds."""

    @classmethod
    def read(cls, data: Path) -> Kernels:
        """Read the H100 rows of the reference data."""
        composed: dict[tuple[str, int, int, int], dict[str, float]] = {}
        for row in _rows(data / "latency" / "composed_decode_bf16.csv", "hw", "H100-SXM"):
            key = (row["model"], int(row["tp"]), int(row["batch"]), int(row["context"]))
            parts = ("gemm", "attn", "allreduce", "lmhead")
            composed[key] = {p: float(row[f"{p}_ms"]) * 1e-3 for p in parts if row[f"{p}_ms"]}
        products: dict[tuple[int, int], dict[int, float]] = {}
        for row in _rows(data / "latency" / "gemm_smallM_bf16.csv", "system", "h100_sxm"):
            shape = (int(row["n"]), int(row["k"]))
            products.setdefault(shape, {})[int(row["m"])] = float(row["latency_us"]) * 1e-6
        return cls(composed, products)

    def step_s(self, model: Model) -> float:
        """One step at batch 1 and the shorter context, all parts together."""
        return sum(self._parts(model, 1, NEAREST_CONTEXT).values())

    def dense(self, model: Model) -> Term:
        """Matrix products over query tokens: composed at one token, grown like the nearest measured shapes."""
        parts = self._parts(model, 1, NEAREST_CONTEXT)
        at_one = self._dense_s(model, 1)
        level = parts["gemm"] + parts["lmhead"]
        return _table(("query_tokens", ROW_GRID), values=[level * self._dense_s(model, m) / at_one for m in ROW_GRID])

    def small_dense(self, model: Model) -> Term:
        """Matrix products of a draft model, whose shapes are below the fine grid: composed by batch."""
        batches = self._batches(model, NEAREST_CONTEXT)
        parts = [self._parts(model, b, NEAREST_CONTEXT) for b in batches]
        return _table(("query_tokens", batches), values=_padded([p["gemm"] + p["lmhead"] for p in parts]))

    def all_reduce(self, model: Model) -> Term:
        """All-reduces over query tokens (what they move is proportional to them)."""
        batches = self._batches(model, NEAREST_CONTEXT)
        values = [self._parts(model, b, NEAREST_CONTEXT)["allreduce"] for b in batches]
        return _table(("query_tokens", batches), values=values)

    def attention(self, model: Model, rows_per_sequence: int = 1) -> Term:
        """Attention over (sequences, context); `rows_per_sequence` rows of a token tree read one common context."""
        batches = self._batches(model, FAR_CONTEXT)
        contexts = (NEAREST_CONTEXT, FAR_CONTEXT)
        values = [self._parts(model, b, c)["attn"] for b in batches for c in contexts]
        rows = tuple(b * rows_per_sequence for b in batches)
        return _table(("sequences", rows), ("context_tokens", contexts), values=values)

    def _dense_s(self, model: Model, rows: int) -> float:
        total = 0.0
        for count, n, k in model.products():
            nearest = min(self.products, key=lambda shape: (abs(shape[1] - k), abs(shape[0] - n)))
            measured = self.products[nearest]
            total += count * n * k / (nearest[0] * nearest[1]) * min(s for m, s in measured.items() if m >= rows)
        return total

    def _batches(self, model: Model, context: int) -> tuple[int, ...]:
        known = {
            key[2] for key, parts in self.composed.items() if key[:2] == (model.name, model.tp) and "attn" in parts
        }
        return tuple(sorted(b for b in known if "attn" in self._parts(model, b, context)))

    def _parts(self, model: Model, batch: int, context: int) -> dict[str, float]:
        return self.composed[model.name, model.tp, batch, context]


def significant(value: float, digits: int = 4) -> float:
    """`value` rounded to `digits` significant digits, so that committed files stay readable."""
    return float(f"{value:.{digits}g}")


def summed(*terms: Term) -> Term:
    """Several terms one after the other."""
    return {"kind": "sum", "scale": 1.0, "terms": list(terms)}


def constant(seconds: float) -> Term:
    """The same time whatever the shape."""
    return {"kind": "constant", "seconds": significant(seconds)}


def _table(*axes: tuple[str, tuple[int, ...]], values: list[float]) -> Term:
    return {
        "kind": "table",
        "axes": [name for name, _ in axes],
        "grid": [[float(point) for point in points] for _, points in axes],
        "seconds": [significant(value) for value in values],
    }


def _padded(values: list[float]) -> list[float]:
    """The shortest time at each size or above."""
    return [min(values[i:]) for i in range(len(values))]


def _rows(path: Path, column: str, wanted: str) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row[column] == wanted]
