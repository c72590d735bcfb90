"""The list of vLLM's own tests is well formed, and everything that it does not say is news."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from peer_listing import LISTING, ORGANIZATIONS, Listing, Outcome, judge

from hsexp.config.base import ConfigError

PASSED = Outcome(passed=True, num_made=1)
FAILED = Outcome(passed=False, num_made=1, failure="assert 1 == 2")

LIST: dict[str, Any] = {
    "modules": {
        "test_a.py": {
            "does_not_apply": [{"reason": "drafts are refused", "tests": ["test_drafts"]}],
            "fails": [
                {"reason": "no room", "organizations": ["s1"], "tests": ["test_room[1]"]},
            ],
        }
    },
    "not_run": [{"reason": "makes nothing", "modules": ["test_b.py"]}],
}
COLLECTED = ["test_drafts[1]", "test_drafts[2]", "test_room[1]", "test_room[2]"]


def news(organization: Any, **outcomes: Outcome) -> tuple[str, ...]:
    found = {"test_room[1]": PASSED, "test_room[2]": PASSED}
    found |= {name.replace("_of_", "[") + "]": outcome for name, outcome in outcomes.items()}
    return judge(Listing.parse(LIST), "test_a.py", organization, COLLECTED, found).news


def test_the_list_names_no_test_twice_and_no_module_both_run_and_not_run() -> None:
    assert Listing.read().contradictions() == []


def test_every_organization_runs_a_module_and_every_failure_has_a_reason() -> None:
    modules = Listing.read().modules
    run = {organization for module in modules.values() for organization in module.organizations}
    assert run == set(ORGANIZATIONS)
    reasons = [e.reason for m in modules.values() for e in (*m.does_not_apply, *m.fails)]
    assert all(len(reason.split()) >= 4 or "refused" in reason for reason in reasons)


def test_no_entry_is_about_an_organization_over_which_its_module_does_not_run() -> None:
    written = yaml.safe_load(LISTING.read_text(encoding="utf-8"))["modules"]
    for module in written.values():
        for entry in (*module.get("does_not_apply", ()), *module.get("fails", ())):
            run = module.get("organizations", ORGANIZATIONS)
            assert set(entry.get("organizations", ())) <= set(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reason": ""}, "reason"),
        ({"tests": []}, "tests"),
        ({"organizations": ["s3"]}, "organizations"),
        ({"because": "no room"}, "because"),
    ],
)
def test_an_entry_without_reason_or_tests_is_refused(changes: dict[str, Any], message: str) -> None:
    entry = {"reason": "no room", "tests": ["test_room"]} | changes
    with pytest.raises(ConfigError, match=message):
        Listing.parse({"modules": {"test_a.py": {"fails": [entry]}}, "not_run": []})


def test_a_test_that_fails_and_does_not_apply_is_a_contradiction(tmp_path: Path) -> None:
    entry = {"reason": "no room", "tests": ["test_drafts[2]"]}
    module = LIST["modules"]["test_a.py"] | {"fails": [entry]}
    path = tmp_path / "list.yaml"
    left_out = [{"reason": "makes nothing", "modules": ["test_a.py"]}]
    path.write_text(yaml.safe_dump({"modules": {"test_a.py": module}, "not_run": left_out}))
    found = Listing.read(path).contradictions()
    assert "test_a.py is listed twice" in found
    assert "test_a.py::test_drafts is listed twice for s1" in found


def test_a_run_as_listed_is_no_news() -> None:
    assert news("s1", test_room_of_1=FAILED) == news("s2") == ()


def test_a_failure_is_news_where_it_is_not_listed() -> None:
    assert news("s2", test_room_of_1=FAILED) == ("test_room[1] fails\nassert 1 == 2",)
    assert news("s1", test_room_of_1=FAILED, test_room_of_2=FAILED) == (
        "test_room[2] fails\nassert 1 == 2",
    )


def test_a_listed_failure_that_passes_is_news() -> None:
    assert news("s1") == ("test_room[1] is listed as failing and passes",)


def test_a_test_that_asks_nothing_of_ours_is_news() -> None:
    assert news("s2", test_room_of_2=Outcome(passed=True, num_made=0)) == (
        "test_room[2] asks nothing of ours",
    )


def test_a_test_that_did_not_run_and_a_name_that_is_no_test_are_news() -> None:
    verdict = judge(Listing.parse(LIST), "test_a.py", "s2", ["test_room[2]"], {})
    assert verdict.news == (
        "test_drafts is listed and is no test of this module",
        "test_room[1] is listed and is no test of this module",
        "test_room[2] did not run",
    )


def test_counts_are_of_tests_that_apply() -> None:
    outcomes = {"test_room[1]": FAILED, "test_room[2]": PASSED}
    verdict = judge(Listing.parse(LIST), "test_a.py", "s1", COLLECTED, outcomes)
    assert (verdict.num_applying, verdict.num_passed, verdict.num_listed) == (2, 1, 1)
