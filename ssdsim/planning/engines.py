"""Where the points of a sweep run: in this process, in local processes, on Ray or on Dask.

Futures are the common denominator: every engine submits a function and returns a `concurrent.futures.Future`,
so one loop serves them all. Results depend on the configuration only, never on the engine or on which worker did
what.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Protocol

from ssdsim.errors import InputError


class EngineKind(StrEnum):
    LOCAL = "local"
    RAY = "ray"
    DASK = "dask"


class Engine(Protocol):
    """Runs functions elsewhere."""

    num_workers: int

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Start `function(*args)`; both must be picklable."""


@contextmanager
def open_engine(kind: EngineKind, num_workers: int | None = None) -> Iterator[Engine]:
    """An engine for the duration of the block; one worker per core unless `num_workers` says otherwise.

    Leaving the block by an exception drops what has not started and ends the workers at once.
    """
    workers = num_workers if num_workers is not None else os.cpu_count() or 1
    if workers < 1:
        raise InputError(f"--workers: must be at least 1; got {workers}")
    if kind is EngineKind.RAY:
        opened = _open_ray(workers)
    elif kind is EngineKind.DASK:
        opened = _open_dask(workers)
    else:
        opened = _open_processes(workers) if workers > 1 else _open_here()
    with opened as engine:
        yield engine


class _Here:
    """Runs everything at once in this process."""

    num_workers = 1

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class _Pool:
    """An executor of the standard library's kind."""

    def __init__(self, executor: Any, num_workers: int) -> None:
        self._executor = executor
        self.num_workers = num_workers

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(function, *args)
        return future


class _Ray:
    def __init__(self, ray: Any, num_workers: int) -> None:
        self._ray = ray
        self.num_workers = num_workers

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = self._ray.remote(function).remote(*args).future()
        return future


@contextmanager
def _open_here() -> Iterator[Engine]:
    yield _Here()


@contextmanager
def _open_processes(workers: int) -> Iterator[Engine]:
    import multiprocessing

    # Not fork: NumPy and Arrow run threads of their own, which a forked child would find frozen.
    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        yield _Pool(pool, workers)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    pool.shutdown()


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    import multiprocessing
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def _open_ray(workers: int) -> Iterator[Engine]:
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray: Ray is not installed; pip install 'ssdsim[ray]'") from None
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield _Ray(ray, workers)
    finally:
        if started_here:
            ray.shutdown()


@contextmanager
def _open_dask(workers: int) -> Iterator[Engine]:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError("--engine dask: Dask is not installed; pip install 'ssdsim[dask]'") from None
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        yield _Pool(client.get_executor(pure=False), workers)
