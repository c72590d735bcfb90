"""Samples, beams and drafts by forking in real vLLM, against caches that share nothing."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_process import settings
from small_models import VOCABULARY, save_model, save_tokenizer, tiny
from vllm.entrypoints.generate.beam_search.utils import get_beam_search_score

RUN = Path(__file__).parent / "fork_run.py"
ORGANIZATIONS = ("s0", "s1", "s2", "d0")
BLOCK = {"s0": 32, "s1": 32, "s2": 32, "d0": 16}
GRID = 32

RNG = random.Random(2)
PROMPTS = [[RNG.randrange(3, VOCABULARY) for _ in range(length)] for length in (77, 45)]
MANY = [[RNG.randrange(3, VOCABULARY) for _ in range(40 + 7 * i)] for i in range(8)]
GREEDY = {"temperature": 1, "top_k": 1}
"""vLLM takes no n > 1 at temperature 0."""

SAMPLES = {
    "samples": {"prompts": PROMPTS, "n": 4, "max_tokens": 12, "sampling": GREEDY},
    "seeds": {"prompts": PROMPTS, "n": 3, "max_tokens": 8, "sampling": {"seed": 0}},
    "cancelled": {"prompts": PROMPTS, "n": 3, "max_tokens": 40, "sampling": {}, "cancel_at": 9},
    "many": {"prompts": MANY, "n": 3, "max_tokens": 30, "sampling": GREEDY},
}
BEAMS = {
    f"beams{width}": {"prompts": PROMPTS, "width": width, "max_tokens": 14} for width in (2, 3, 4)
}
NUM_DRAFTS = 4
WRONG = (0, 2, 5, 9, 15, 16, 20, 22, 23, 29, 35)
"""Places at which the drafter is wrong: passes accept none to all of their four drafts."""
DRAFTED = {"prompt": PROMPTS[0][:60], "num_tokens": 40, "num_drafts": NUM_DRAFTS, "seed": 5}
DRAFTS = {
    "greedy": DRAFTED | {"temperature": 0.0, "wrong": WRONG},
    "sampled": DRAFTED | {"temperature": 1.0, "wrong": None},
}
CASES = [(accepted, length) for length in range(62, 67) for accepted in range(NUM_DRAFTS + 1)]
"""Accepted drafts, and the length that they end at, around a boundary of blocks and states."""
ROLLBACKS = {"rollbacks": DRAFTED | {"prompt": PROMPTS[0][:57], "temperature": 0.0, "cases": CASES}}
TASKS: dict[str, dict[str, Any]] = {
    name: task | {"kind": kind}
    for kind, tasks in (
        ("samples", SAMPLES),
        ("beams", BEAMS),
        ("drafts", DRAFTS),
        ("rollbacks", ROLLBACKS),
    )
    for name, task in tasks.items()
}
ENDING = "ending"
"""Beams of which one ends early, under a length penalty."""
EOS = 394
"""Fifth token of the best beam of the first prompt."""


def engine(organization: str, forks: str, *tasks: str, num_pages: int = 600) -> dict[str, Any]:
    chosen = settings(
        tiny(4),
        organization,
        num_pages * 16384,
        block_size=32,
        checkpoint_grid=GRID,
        slot_bytes=4096,
        cap=12,
    )
    leaves = 0 if forks == "separate" else 64
    return {"settings": chosen | {"max_leaves": leaves}, "forks": forks, "tasks": tasks}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By engine, then by task."""
    folder = tmp_path_factory.mktemp("forks")
    model = save_model(folder / "model", tiny(4), dtype="float32")
    save_tokenizer(folder / "model")
    tasks = TASKS | {
        ENDING: {"kind": "beams", "prompts": PROMPTS, "width": 3, "max_tokens": 10}
        | {"length_penalty": 2.0, "eos": EOS}
    }
    separate = ("samples", "seeds", "many", *BEAMS, ENDING, *DRAFTS)
    engines = {"separate": engine("s0", "separate", *separate)}
    shared = ("samples", "seeds", "cancelled", *BEAMS, *DRAFTS, *ROLLBACKS)
    for name in ORGANIZATIONS:
        engines[name] = engine(name, "shared", *shared)
        engines[f"{name} copied"] = engine(name, "copied", "samples", "beams3")
    engines["s2 ending"] = engine("s2", "shared", ENDING)
    for name, num_pages in (("s2", 32), ("d0", 30)):
        engines[f"{name} tight"] = engine(name, "shared", "many", num_pages=num_pages)
    source, target = folder / "job.json", folder / "results.json"
    source.write_text(json.dumps({"model": model, "engines": engines, "tasks": tasks}))
    done = subprocess.run(
        [sys.executable, str(RUN), str(source), str(target)],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert target.exists(), done.stderr[-3000:]
    found = json.loads(target.read_text(encoding="utf-8"))
    return {
        name: dict(zip(each["tasks"], found[name], strict=True)) for name, each in engines.items()
    }


def scheduled(result: dict[str, Any]) -> int:
    return sum(map(sum, result["schedule"]))


@pytest.mark.parametrize("task", ["samples", "beams3"])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_shared_blocks_give_the_bits_of_copied_ones(
    organization: str, task: str, results: dict[str, dict[str, Any]]
) -> None:
    shared, copied = results[organization][task], results[f"{organization} copied"][task]
    assert shared["schedule"] == copied["schedule"]
    assert shared["outputs"] == copied["outputs"]


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_samples_say_what_requests_with_caches_of_their_own_say(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    pairs = zip(
        results[organization]["samples"]["outputs"],
        results["separate"]["samples"]["outputs"],
        strict=True,
    )
    for ours, theirs in pairs:
        assert len(ours) == 4
        for sample, other in zip(ours, theirs, strict=True):
            assert sample["tokens"] == other["tokens"]
            for here, there in zip(sample["logprobs"], other["logprobs"], strict=True):
                assert here == pytest.approx(there, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "task"),
    [(name, task) for name in ORGANIZATIONS for task in BEAMS] + [("s2 ending", ENDING)],
)
def test_beams_are_those_of_caches_of_their_own(
    name: str, task: str, results: dict[str, dict[str, Any]]
) -> None:
    ours, theirs = results[name][task]["outputs"], results["separate"][task]["outputs"]
    for beams, others in zip(ours, theirs, strict=True):
        assert [beam["tokens"] for beam in beams] == [beam["tokens"] for beam in others]
        for beam, other in zip(beams, others, strict=True):
            assert beam["score"] == pytest.approx(other["score"], abs=1e-4)


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_every_sample_has_a_seed_of_its_own_and_forking_changes_none(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    for ours, theirs in zip(
        results[organization]["seeds"]["outputs"],
        results["separate"]["seeds"]["outputs"],
        strict=True,
    ):
        tokens = [tuple(sample["tokens"]) for sample in ours]
        assert len(set(tokens)) == 3
        assert tokens == [tuple(sample["tokens"]) for sample in theirs]


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_samples_compute_the_prompt_once_and_copy_what_the_rule_says(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    result = results[organization]["samples"]
    # A prompt and three last tokens, then 11 more tokens for each of the four samples.
    assert scheduled(result) == sum(len(prompt) + 3 + 4 * 11 for prompt in PROMPTS)
    # The prefixes of 76 and 44 end off the grid and off every block: all four copy state and tail.
    assert result["copies"] == [8, 8]
    everything = sum(4 * (len(prompt) + 11) for prompt in PROMPTS)
    assert scheduled(results["separate"]["samples"]) == everything


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_a_beam_computes_one_token_a_step_and_copies_what_the_rule_says(
    organization: str, width: int, results: dict[str, dict[str, Any]]
) -> None:
    result = results[organization][f"beams{width}"]
    # The prompts, then 13 steps of one token a beam, whose prefix grows from the prompt on.
    assert scheduled(result) == sum(map(len, PROMPTS)) + 2 * 13 * width
    prefixes = [len(prompt) + step for prompt in PROMPTS for step in range(13)]
    assert result["copies"] == [
        width * sum(1 for prefix in prefixes if prefix % size)
        for size in (BLOCK[organization], GRID)
    ]
    # Caches of their own: every beam computes everything before its next token again.
    again = sum(prefix + 1 for prefix in prefixes)
    separate = results["separate"][f"beams{width}"]
    assert scheduled(separate) == sum(map(len, PROMPTS)) + width * again


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_cancelled_samples_leave_nothing_behind(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    for task, result in results[organization].items():
        assert result["live"] == 0, task
        assert not any(result["held"]), task
    cancelled = results[organization]["cancelled"]
    assert cancelled["outputs"] == [None, None]
    assert [len(step) for step in cancelled["schedule"]][-1] == 6  # in the middle of their decoding


def expected_passes(organization: str, prompt_length: int, num_tokens: int) -> list[dict[str, Any]]:
    """Greedy passes: drafts are accepted until the drafter is wrong.

    A pass starts from a leaf, or from a boundary that one before it has crossed. Its two requests
    copy the state and the tail there and end a step on the grid; should what is certain go beyond
    a boundary, the drafted one waits a step for it and starts from there.
    """
    passes: list[dict[str, Any]] = []
    place, leaf = 0, prompt_length - 1
    while place < num_tokens:
        known = prompt_length + place
        drafted = min(NUM_DRAFTS, num_tokens - place - 1)
        drafts = range(place, place + drafted)
        accepted = next((i for i, draft in enumerate(drafts) if draft in WRONG), drafted)
        first = max(leaf, (known - 1) // GRID * GRID)
        starts = [first, max(first, known // GRID * GRID)][: 1 + (drafted > 0)]
        ends = [known, known + drafted]
        passes.append(
            {
                "accepted": accepted,
                "drafted": drafted,
                "steps": 1 + sum(first < each < ends[-1] for each in range(0, 128, GRID)),
                "tokens": sum(end - start for start, end in zip(starts, ends, strict=False)),
                "copies": [
                    sum(start % size > 0 for start in starts)
                    for size in (BLOCK[organization], GRID)
                ],
            }
        )
        leaf = known + drafted if accepted == drafted else known
        place += accepted + 1
    return passes


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_greedy_drafts_give_the_greedy_tokens_from_the_accepted_length_on(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    found = results[organization]["greedy"]["outputs"]
    assert found["tokens"] == found["greedy"]
    assert found["tokens"] == results["separate"]["greedy"]["outputs"]["tokens"]
    expected = expected_passes(organization, 60, 40)
    # Before the first pass the prompt but its last token: to the boundary at 32, and to 59.
    expected[0]["steps"] += 2
    expected[0]["tokens"] += 59
    assert found["passes"] == expected
    assert {each["accepted"] for each in expected} == {0, 1, 2, 3, 4}
    assert [each["steps"] for each in expected].count(1) > len(expected) / 2


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_drafts_are_rolled_back_to_every_length_around_a_boundary(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    outputs = results[organization]["rollbacks"]["outputs"]
    for (accepted, length), found in zip(CASES, outputs["found"], strict=True):
        # The token behind the accepted drafts, then a pass of four drafts and one more token.
        assert found["accepted"] == [accepted, NUM_DRAFTS]
        assert found["tokens"] == outputs["text"][: length + 1 + NUM_DRAFTS + 1]


@pytest.mark.parametrize("organization", ORGANIZATIONS)
def test_sampled_drafts_meet_the_fate_that_a_target_without_rollback_gives_them(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    # The same random numbers, and a target that computes every distribution from the first token.
    ours, theirs = (results[name]["sampled"]["outputs"] for name in (organization, "separate"))
    assert ours["tokens"] == theirs["tokens"] != ours["greedy"]
    fates = [
        [(each["accepted"], each["drafted"]) for each in one["passes"]] for one in (ours, theirs)
    ]
    assert fates[0] == fates[1]
    assert len({accepted for accepted, _ in fates[0]}) > 2


@pytest.mark.parametrize("organization", ["s2", "d0"])
def test_preempted_samples_say_the_same_in_a_pool_too_small_for_all(
    organization: str, results: dict[str, dict[str, Any]]
) -> None:
    tight, roomy = results[f"{organization} tight"]["many"], results["separate"]["many"]
    assert tight["preemptions"] > 3
    for ours, theirs in zip(tight["outputs"], roomy["outputs"], strict=True):
        assert [sample["tokens"] for sample in ours] == [sample["tokens"] for sample in theirs]
    assert tight["live"] == 0 and not any(tight["held"])


def test_beams_are_ranked_by_the_rule_of_vllm_which_counts_the_prompt(
    results: dict[str, dict[str, Any]],
) -> None:
    # After a prompt of 1,000 tokens, sums of -2.0 over 2 tokens and -2.5 over 4. By output length
    # the longer one leads: -2.0 / 2^1.1 = -0.933 and -2.5 / 4^1.1 = -0.544. By vLLM's rule the
    # lengths are 1,002 and 1,004.
    short, long = [5] * 1002, [5] * 1004
    scores = [get_beam_search_score(*beam, 2, 1.1) for beam in ((short, -2.0), (long, -2.5))]
    assert scores == [pytest.approx(-2.0 / 1002**1.1), pytest.approx(-2.5 / 1004**1.1)]
    assert scores[0] > scores[1]
    beams = results["s2 ending"][ENDING]["outputs"][0]
    assert [len(beam["tokens"]) for beam in beams] != [10] * 3
    counted = [len(PROMPTS[0] + beam["tokens"]) - (beam["tokens"][-1] == EOS) for beam in beams]
    ranks = [beam["score"] / length**2.0 for beam, length in zip(beams, counted, strict=True)]
    assert ranks == sorted(ranks, reverse=True)
