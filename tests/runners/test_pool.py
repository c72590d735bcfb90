"""The pool: a death has a task, and a bad start is an error instead of a row."""

import os
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from runners.pool import WorkerDeath, WorkerPool, WorkerStartError


class EndsWhileStarting:
    """A function whose process ends as it is handed over."""

    def __call__(self, task: int) -> int:
        return task

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (7,)


def end_or_double(task: int) -> int:
    if task < 0:
        os._exit(-task)
    return 2 * task


def keep_until_the_end(path: Path) -> None:
    path.write_text("kept", encoding="utf-8")
    Finalize(None, path.unlink, exitpriority=0)


def test_an_idle_worker_ends_what_it_keeps_before_the_pool_has_ended(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with WorkerPool[Path, None](keep_until_the_end, num_workers=1) as pool:
        pool.submit(kept)
        while pool.num_busy:
            pool.wait(1.0)
        assert kept.exists()
    assert not kept.exists()


def test_a_dead_worker_is_replaced_and_only_its_own_task_is_lost() -> None:
    with WorkerPool[int, int](end_or_double, num_workers=2) as pool:
        results: dict[int, int | WorkerDeath] = {}
        for task in (1, -3, 2, 3):
            while not pool.has_room:
                results |= dict(pool.wait(1.0))
            pool.submit(task)
        while pool.num_busy:
            results |= dict(pool.wait(1.0))
    assert results == {1: 2, -3: WorkerDeath(exit_code=3), 2: 4, 3: 6}


def test_a_worker_that_dies_between_two_tasks_takes_none_with_it() -> None:
    with WorkerPool[int, int](end_or_double, num_workers=1) as pool:
        pool.submit(1)
        while pool.num_busy:
            pool.wait(1.0)
        (worker,) = pool._workers
        worker.process.kill()
        worker.process.join()
        pool.submit(2)
        results: list[tuple[int, int | WorkerDeath]] = []
        while pool.num_busy:
            results += pool.wait(1.0)
    assert results == [(2, 4)]


def test_a_worker_that_cannot_start_is_an_error() -> None:
    with WorkerPool[int, int](EndsWhileStarting(), num_workers=1) as pool:
        pool.submit(1)
        with pytest.raises(WorkerStartError, match="exit code 7"):
            while pool.num_busy:
                pool.wait(1.0)


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        WorkerPool(end_or_double, num_workers=0)


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [(-9, "killed by SIGKILL (out of memory?)"), (-11, "killed by SIGSEGV"), (1, "exit code 1")],
)
def test_a_death_says_what_ended_the_worker(exit_code: int, text: str) -> None:
    assert str(WorkerDeath(exit_code=exit_code)) == f"worker died: {text}"
