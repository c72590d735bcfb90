"""Worker processes, one task each at a time, so that a death names its task.

`concurrent.futures` breaks the whole pool when a process dies and cannot say which task it had;
here each worker has its own pipe, a dead one is replaced, and the others continue. Workers are
spawned, not forked: pandas and PyArrow own threads. A worker leaves Ctrl-C, SIGTERM and SIGHUP,
which a whole process group may receive, to its parent, and ends when its parent does.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Self, TypeVar

from runners.interrupt import STOPS

_END_S = 20.0
"""Time in which an idle worker ends what it keeps, such as an engine."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerStartError(RuntimeError):
    """A worker ended before it took its first task; its own message is on the error stream."""


@dataclass(frozen=True, kw_only=True)
class WorkerDeath:
    """A worker died while it had a task."""

    exit_code: int | None

    def __str__(self) -> str:
        code = self.exit_code
        if code is None or code >= 0:
            return f"worker died: exit code {code}"
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"worker died: killed by {name}{hint}"


@dataclass(kw_only=True, eq=False)
class _Worker(Generic[Task]):
    process: SpawnProcess
    connection: Connection
    task: Task | None = None
    ready: bool = False
    """It has started and waits for tasks."""


class WorkerPool(Generic[Task, Result]):
    """Processes that call one picklable function; a context manager that ends them."""

    def __init__(self, function: Callable[[Task], Result], *, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"workers must be at least 1, got {num_workers}")
        self._function = function
        self._num_workers = num_workers
        self._workers: list[_Worker[Task]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            if worker.task is not None:
                worker.process.kill()
            worker.connection.close()  # which ends an idle one, in order
        for worker in self._workers:
            worker.process.join(_END_S)
            worker.process.kill()
            worker.process.join()
        self._workers.clear()

    @property
    def num_busy(self) -> int:
        return sum(worker.task is not None for worker in self._workers)

    @property
    def has_room(self) -> bool:
        return self.num_busy < self._num_workers

    def submit(self, task: Task) -> None:
        """Give a task to an idle worker, or to a new one."""
        assert self.has_room, "every worker is busy"
        worker = next((worker for worker in self._workers if worker.task is None), None)
        if worker is not None and not self._send(worker, task):
            self._remove(worker)
            worker = None
        if worker is None:
            worker = self._start()
            self._send(worker, task)

    def wait(self, timeout_s: float) -> list[tuple[Task, Result | WorkerDeath]]:
        """Tasks that ended, waiting for the first one at most `timeout_s`."""
        busy = [worker for worker in self._workers if worker.task is not None]
        sources = [worker.connection for worker in busy]
        sentinels = [worker.process.sentinel for worker in busy]
        signalled = wait([*sources, *sentinels], timeout_s)
        ended: list[tuple[Task, Result | WorkerDeath]] = []
        for worker in busy:
            if worker.connection in signalled or worker.process.sentinel in signalled:
                ended.extend(self._receive(worker))
        return ended

    def _start(self) -> _Worker[Task]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(self._function, theirs))
        with _stops_blocked():
            process.start()
        theirs.close()
        worker: _Worker[Task] = _Worker(process=process, connection=ours)
        self._workers.append(worker)
        return worker

    def _send(self, worker: _Worker[Task], task: Task) -> bool:
        """False when the worker is gone. A new worker's death shows in `wait`."""
        try:
            worker.connection.send(task)
        except OSError:
            if worker.ready:
                return False
        worker.task = task
        return True

    def _receive(self, worker: _Worker[Task]) -> Iterator[tuple[Task, Result | WorkerDeath]]:
        assert worker.task is not None
        try:
            if not worker.ready:
                worker.connection.recv()
                worker.ready = True
                if not worker.connection.poll():
                    return
            result: Result = worker.connection.recv()
        except (EOFError, OSError):
            self._remove(worker)
            if not worker.ready:
                raise WorkerStartError(
                    f"a worker process could not start (exit code {worker.process.exitcode})"
                ) from None
            yield worker.task, WorkerDeath(exit_code=worker.process.exitcode)
            return
        task, worker.task = worker.task, None
        yield task, result

    def _remove(self, worker: _Worker[Task]) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()


def _work(function: Callable[[Any], Any], connection: Connection) -> None:
    """Loop of a worker: receive tasks, send results, until the parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):  # no SIG_IGN: what a worker starts inherits that
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError):
        connection.send(None)
        while True:
            connection.send(function(connection.recv()))


def _end_with_parent() -> None:
    """Exit with the parent: a killed parent cannot end its workers, and a long task would go on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _stops_blocked() -> Iterator[None]:
    """Start processes in here so that no signal of `STOPS` ends them before they take it over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()  # its own start would lift the block of the others
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
