"""A cell is decided by its configuration and seed alone."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from digest_of_runs import digest_of_run
from toy_engine import ORGANIZATIONS, falcon_memory, falcon_workload, play_falcon

from hsexp.workload import Workload, isolate

SCRIPT = Path(__file__).parent / "digest_of_runs.py"


def digests_in_a_new_process(*organizations: str, hash_seed: int) -> dict[str, str]:
    output = subprocess.run(
        [sys.executable, str(SCRIPT), *organizations],
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return dict(line.split() for line in output.splitlines())


def test_a_cell_run_four_times_in_any_order_and_process_gives_the_same_bytes() -> None:
    here = {name: digest_of_run(name) for name in ORGANIZATIONS}
    shuffled = random.Random(1).sample(ORGANIZATIONS, k=len(ORGANIZATIONS))
    assert here == {name: digest_of_run(name) for name in shuffled}
    assert here == digests_in_a_new_process(*ORGANIZATIONS, hash_seed=0)
    assert here == digests_in_a_new_process(*reversed(shuffled), hash_seed=12345)


def test_another_seed_gives_another_run() -> None:
    assert digest_of_run("s2", seed=7) != digest_of_run("s2", seed=8)


def test_every_arm_of_a_seed_meets_the_same_requests_and_leaves_them_as_they_are() -> None:
    workload = falcon_workload(7, num_requests=40)
    digest = workload.digest
    for organization in ORGANIZATIONS:
        play_falcon(workload, falcon_memory(organization, "b63"))
    # A copy, because a workload remembers its digest.
    assert Workload(name="again", requests=workload.requests).digest == digest
    assert falcon_workload(7, num_requests=40).digest == digest


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_shared_contexts_are_reused_and_isolated_requests_reuse_nothing(organization: str) -> None:
    workload = falcon_workload(7, num_requests=100)
    shared = play_falcon(workload, falcon_memory(organization, "b83"))
    isolated = play_falcon(isolate(workload), falcon_memory(organization, "b83"))
    assert shared.requests["adopted_tokens"].sum() > 0
    assert not isolated.requests["adopted_tokens"].any()
    assert (isolated.requests["status"] == "finished").all()
