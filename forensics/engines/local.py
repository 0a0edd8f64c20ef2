"""Processes of one machine: the embedded default.

Workers are started fresh rather than forked, because compiled kernels and Arrow keep threads that a fork would lose. At most
one task per worker is out at a time, so memory is bounded by workers times what one task holds. A worker that is killed, by the
memory killer for one, costs its task a second try alone, then a `TaskError`; the others go on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from forensics.engines.base import EngineSettings, TaskError
from forensics.errors import ForensicsError, PluginError, caused_by
from forensics.registry import load_plugin, plugin_error, plugin_files

A = TypeVar("A")
B = TypeVar("B")
KILLED = "its process was killed twice, most likely for want of memory; make `engine.batch_mb` or `engine.workers` smaller"
GRACE_S = 5.0  # for a task that is told to end: it clears up, or is amid a kernel


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Told(SystemExit):
    """A worker was told to end."""


def _give_up(*_: object) -> None:
    raise _Told(1)


def _quiet() -> None:
    """Set a worker up: one thread each, no reaction to Ctrl-C of its own; told to end, it gives its task up as after an error and ends, as with its parent."""
    import signal

    import pyarrow as pa

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _give_up)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _end_with_parent() -> None:
    """Else a worker whose parent was killed would wait for tasks for ever, or go on writing beside the next run of the same command."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(function: Callable[[A], B], item: A, plugins: Sequence[Path]) -> B:
    """One task in a worker, which knows the components that its parent was given as files.

    Raises:
        PluginError: one of them failed; told here, since where it failed does not reach the parent.
    """
    for path in plugins:
        load_plugin(path)
    try:
        return function(item)
    except ForensicsError:
        raise
    except _Told:  # as the task's result the pool would take it, and the worker wait for another
        os._exit(1)
    except Exception as error:
        if caused_by(error, _Told):  # as a kernel wraps it
            os._exit(1)
        if (told := plugin_error(error)) is None:
            raise
        raise told from error


class Inline:
    """The tasks one after the other in this process."""

    def map(self, function: Callable[[A], B], items: Sequence[A], on_done: Callable[[int, B | TaskError], None] | None = None) -> Iterator[B | TaskError]:
        """Results in order; an error the user can understand becomes a `TaskError`, any other is raised."""
        for index, item in enumerate(items):
            result: B | TaskError
            try:
                result = function(item)
            except ForensicsError as error:
                result = TaskError(index, error.message)
            if on_done:
                on_done(index, result)
            yield result


class Processes:
    """The tasks over processes.

    Args:
        workers: how many at a time.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map(self, function: Callable[[A], B], items: Sequence[A], on_done: Callable[[int, B | TaskError], None] | None = None) -> Iterator[B | TaskError]:
        """Results in order; a task whose process is killed even when it runs alone is a `TaskError`, as is one with an error the user can understand.

        Raises:
            PluginError: a foreign component failed.
        """
        results: dict[int, B | TaskError] = {}
        given = 0
        for index, result in self._finished(function, items):
            results[index] = result
            if on_done:
                on_done(index, result)
            while given in results:
                yield results.pop(given)
                given += 1

    def _finished(self, function: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[int, B | TaskError]]:
        """Results as they come; tasks that were out when a process was killed run again at the end, each alone."""
        alone: list[int] = []
        waiting = list(range(len(items)))[::-1]
        while waiting:
            running: dict[Future[B], int] = {}
            with self._pool(self.workers) as pool, _ended_with(running):
                broken = False
                while (waiting and not broken) or running:
                    while waiting and not broken and len(running) < self.workers:
                        index = waiting.pop()
                        try:
                            running[pool.submit(_run, function, items[index], plugin_files())] = index
                        except BrokenProcessPool:
                            broken = True
                            alone.append(index)
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        index = running.pop(future)
                        try:
                            yield index, _result(future, index)
                        except BrokenProcessPool:
                            broken = True
                            alone.append(index)
        for index in sorted(alone):
            running = {}
            with self._pool(1) as pool, _ended_with(running):
                future = pool.submit(_run, function, items[index], plugin_files())
                running[future] = index
                try:
                    result = _result(future, index)
                except BrokenProcessPool:
                    result = TaskError(index, KILLED)
                running.clear()
                yield index, result

    def _pool(self, workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet)


@contextlib.contextmanager
def _ended_with(running: Mapping[Any, int]) -> Iterator[None]:
    """Tasks that are out end when whoever waits for them does, by Ctrl-C or an error, rather than run on to no use.

    Workers without one end by themselves: one that is told to between two tasks may end with the lock of the queue, and then the others wait for ever.
    """
    try:
        yield
    except BaseException:
        if running:
            children = multiprocessing.active_children()
            for child in children:
                child.terminate()
            last = time.monotonic() + GRACE_S
            for child in children:
                child.join(max(0.0, last - time.monotonic()))
                if child.is_alive():
                    child.kill()
        raise


def _result(future: Future[Any], index: int) -> Any:
    """A task's result, or its error where the user can understand it."""
    try:
        return future.result()
    except PluginError:
        raise
    except ForensicsError as error:
        return TaskError(index, error.message)


def local_engine(settings: EngineSettings, bytes_to_read: int, tasks: int) -> Inline | Processes:
    """This machine's engine for so much work."""
    workers = min(settings.workers or usable_cores(), tasks)
    return Processes(workers) if workers > 1 and bytes_to_read > settings.inline_mb << 20 else Inline()
