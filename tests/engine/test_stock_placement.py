"""S0 with vLLM's placement schedules what unpatched vLLM schedules, step by step.

Both have the same pages, and more than they need: where pages are short they differ on purpose, in
what admission counts and in the order of release.
"""

from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm_scheduler import Drive, build_scheduler, drive, settings, vllm_config

from hsexp.config.catalog import read_option
from hsexp.config.device import DeviceConfig
from hsexp.engine.settings import EngineSettings
from hsexp.sim.steptime import StepClock
from hsexp.workload import Request, Segment, Workload, generate
from hsexp.workload.arrivals import PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload

GRID = 96


def s0(placement: str, grid: int) -> EngineSettings:
    chosen = settings("s0", "b320", placement=placement)
    sizes = {"block_size": grid, "checkpoint_grid": grid}
    organization = chosen.organization.model_copy(update=sizes)
    return chosen.model_copy(update={"organization": organization})


def in_turn(prompts: list[tuple[int, int]], *, every_s: float = 60.0) -> Workload:
    """Requests with so many shared and own tokens each, one after the other."""
    return Workload(
        name="toy",
        requests=tuple(
            Request(
                request_id=i,
                arrival_s=i * every_s,
                prompt_tokens=shared + own,
                output_tokens=4,
                segments=(Segment(end_tokens=shared, content_id=0),) if shared else (),
            )
            for i, (shared, own) in enumerate(prompts)
        ),
    )


def played(
    workload: Workload, folder: Path, *, grid: int, placement: str, scheduler: Any = None
) -> Drive:
    """The workload through the plugin's scheduler, or another one in the same shape."""
    chosen = s0(placement, grid)
    config = vllm_config(chosen, folder)
    chosen_class = {} if scheduler is None else {"scheduler": scheduler}
    clock = StepClock.of(DeviceConfig.parse(read_option("device", "a100_40gb")).known_step_time)
    return drive(build_scheduler(chosen, config, **chosen_class), workload, clock)


@pytest.mark.parametrize(
    ("prompts", "adopted"),
    [
        ([(200, 120)] * 4, [0, 0, 192, 192]),
        ([(2 * GRID, 0)] * 4, [0, 0, GRID, GRID]),  # two intervals: the last token is computed
        ([(5 * GRID, 0)] * 4, [0, 0, 4 * GRID, 4 * GRID]),
        ([(2500, 700)] * 4, [0, 2016, 2496, 2496]),  # 2,016: the first chunk of the budget 2,048
        ([(200, 120), (300, 50), (500, 10), (500, 99), (300, 7)], [0, 0, 288, 480, 288]),
        ([(0, 300)] * 3, [0, 0, 0]),
    ],
)
def test_requests_in_turn_hit_what_they_hit_in_vllm(
    prompts: list[tuple[int, int]], adopted: list[int], tmp_path: Path
) -> None:
    workload = in_turn(prompts)
    ours = played(workload, tmp_path, grid=GRID, placement="junction")
    stock = played(workload, tmp_path, grid=GRID, placement="junction", scheduler=Scheduler)
    assert ours == stock
    assert list(ours.adopted_tokens.values()) == adopted


def test_chunk_ends_never_reuse_the_prefix_that_vllm_finds(tmp_path: Path) -> None:
    drive = played(in_turn([(200, 120)] * 4), tmp_path, grid=GRID, placement="chunk_ends")
    assert list(drive.adopted_tokens.values()) == [0, 0, 0, 0]


@pytest.mark.parametrize("every_s", [0.0, 0.01, 0.2])
def test_requests_that_overlap_are_cut_where_vllm_cuts_them(every_s: float, tmp_path: Path) -> None:
    prompts = [(200, 120), (200, 90), (330, 120), (200, 200), (330, 5), (200, 100)] * 2
    workload = in_turn(prompts, every_s=every_s)
    ours = played(workload, tmp_path, grid=GRID, placement="junction")
    stock = played(workload, tmp_path, grid=GRID, placement="junction", scheduler=Scheduler)
    assert ours == stock


def test_a_crowd_on_the_grid_of_the_paper_is_scheduled_as_in_vllm(tmp_path: Path) -> None:
    changes = {"sharing": 1.0, "num_requests": 60, "shared_tokens": 3000}  # not on the grid
    law = read_option("workload", "extension") | changes
    workload = generate(
        SyntheticWorkload.parse(law), PoissonArrivals(kind="poisson", rate_per_s=1.0), seed=7
    )
    ours = played(workload, tmp_path, grid=512, placement="junction")
    stock = played(workload, tmp_path, grid=512, placement="junction", scheduler=Scheduler)
    assert ours == stock
    assert ours != played(workload, tmp_path, grid=512, placement="chunk_ends")
