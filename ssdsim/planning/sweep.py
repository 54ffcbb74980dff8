"""Run a plan: cut its rows into tasks, hand them to an engine, keep every piece that comes back.

The exact method takes tasks of many rows and evaluates them in arrays (`blocks`), every other method takes points one
by one. A row that cannot be answered is recorded with its error, and the sweep goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import InputError, RunError, ScenarioError
from ssdsim.evaluate import Method, compare, evaluate
from ssdsim.planning.blocks import cheapest_order, exact_piece
from ssdsim.planning.engines import Engine
from ssdsim.planning.plan import SweepPlan
from ssdsim.planning.results import FAILED, INVALID, Columns, answered, piece_of_rows, refused
from ssdsim.planning.store import Store
from ssdsim.scenario import Mode
from ssdsim.uncertainty import with_uncertainty

IntArray = NDArray[np.int64]

BLOCK_ROWS = 16_384
"""Rows of one task of the exact method."""
_ROWS_PER_TASK = {Method.PAPER: 64}
"""Closed forms are quick; a simulation, or an answer with its uncertainty, is worth a task of its own."""
_COMPARED = {Method.PAPER, Method.EXACT}
"""Methods so quick that AR and SD are computed beside each row, for its speed-ups."""
_TASKS_PER_WORKER = 3
"""Tasks in flight: enough to keep workers busy, few enough to stop soon."""


def run_sweep(
    plan: SweepPlan, store: Store, engine: Engine, on_progress: Callable[[int], None] = lambda _: None
) -> Columns:
    """Compute what `store` does not have yet and return the whole table.

    `on_progress` is told how many rows have just been finished. When it is interrupted (KeyboardInterrupt), all that
    was finished is kept. Raises `RunError` where a worker died.
    """
    tasks = _tasks(plan, store.finished_rows())
    limit = _TASKS_PER_WORKER * engine.num_workers if engine.num_workers > 1 else 1
    waiting: set[Future[Any]] = set()
    try:
        while True:
            for task in islice(tasks, limit - len(waiting)):
                waiting.add(engine.submit(_compute, plan, *task))
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                _keep(future, store, on_progress)
                waiting.remove(future)
    except BrokenExecutor as error:
        raise RunError(f"a worker died ({error}); what was finished is kept: go on with --resume") from None
    finally:
        for future in (f for f in waiting if f.done() and not f.cancelled() and f.exception() is None):
            _keep(future, store, on_progress)
        store.flush()
    return store.finish()


def useful_workers(plan: SweepPlan, wished: int | None) -> int | None:
    """As many workers as wished; one where nothing else was said and arrays do all the work."""
    only_arrays = set(plan.methods) <= _COMPARED and not plan.uncertainty
    return 1 if wished is None and only_arrays else wished


def _keep(future: Future[Any], store: Store, on_progress: Callable[[int], None]) -> None:
    piece = future.result()
    store.append(piece)
    on_progress(len(piece["row"]))


def _tasks(plan: SweepPlan, finished: IntArray) -> Iterator[tuple[Method, IntArray]]:
    """Method by method, the rows that are missing, in tasks of a fitting size."""
    to_do = np.setdiff1d(np.arange(plan.num_rows), finished, assume_unique=True)
    for number, method in enumerate(plan.methods):
        rows = to_do[to_do % len(plan.methods) == number]
        in_arrays = _in_arrays(plan, method)
        rows = rows[cheapest_order(plan, rows)] if in_arrays else rows
        size = BLOCK_ROWS if in_arrays else _ROWS_PER_TASK.get(method, 1)
        for start in range(0, len(rows), size):
            yield method, rows[start : start + size]


def _in_arrays(plan: SweepPlan, method: Method) -> bool:
    return method is Method.EXACT and not plan.uncertainty


def _compute(plan: SweepPlan, method: Method, rows: IntArray) -> Columns:
    """The piece of one task."""
    if _in_arrays(plan, method):
        return exact_piece(plan, rows, compute_row)
    return piece_of_rows(plan, [compute_row(plan, row) for row in rows.tolist()])


def compute_row(plan: SweepPlan, row: int) -> dict[str, Any]:
    """One row by way of `evaluate`: its answer, or why there is none."""
    point, method = plan.place(row)
    try:
        scenario = plan.scenario(point)
        if method in _COMPARED:
            modes = dict.fromkeys((Mode.AR, Mode.SD, scenario.mode))
            answers = compare(scenario, [method], tuple(modes))
            if plan.uncertainty:
                answers = with_uncertainty(answers, seed=scenario.run.seed)
            return answered(row, next(a for a in answers if a.mode is scenario.mode))
        return answered(row, evaluate(scenario, method))
    except InputError as error:
        return refused(row, INVALID, one_line(error))
    except Exception as error:
        return refused(row, FAILED, f"{type(error).__name__}: {error}")


def one_line(error: InputError) -> str:
    """The message without line breaks, for a cell of a table."""
    return "; ".join(error.problems) if isinstance(error, ScenarioError) else str(error)
