"""ISOLATE salts every request and changes nothing else."""

from dataclasses import replace

from hsexp.workload import Request, Segment, Workload, isolate

SHARED = Workload(
    name="four",
    requests=tuple(
        Request(
            request_id=i,
            arrival_s=float(i),
            prompt_tokens=20,
            output_tokens=4,
            segments=(Segment(end_tokens=16, content_id=0),),
        )
        for i in range(4)
    ),
)


def test_no_two_isolated_requests_have_the_same_salt() -> None:
    salts = [request.cache_salt for request in isolate(SHARED).requests]
    assert None not in salts
    assert len(set(salts)) == 4


def test_isolation_changes_the_salt_alone() -> None:
    unsalted = [replace(request, cache_salt=None) for request in isolate(SHARED).requests]
    assert unsalted == list(SHARED.requests)


def test_isolating_again_gives_the_same_salts() -> None:
    assert isolate(SHARED).digest == isolate(SHARED).digest == isolate(isolate(SHARED)).digest


def test_isolated_and_shared_workloads_have_different_digests() -> None:
    assert isolate(SHARED).digest != SHARED.digest


def test_the_shared_workload_itself_stays_unsalted() -> None:
    isolate(SHARED)
    assert all(request.cache_salt is None for request in SHARED.requests)
