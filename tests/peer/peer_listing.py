"""What is expected of vLLM's own tests, and the verdict on a run of them.

A test applies to an organization unless it is listed as not applying. One that applies passes
unless it is listed as failing. Everything else is news, and news fails the run: another failure, a
listed failure that passes, a listed name that is no test, a test that asked nothing of ours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import yaml
from pydantic import Field, StringConstraints

from hsexp.config.base import Config

LISTING = Path(__file__).with_name("expected.yaml")

Organization = Literal["d0", "s0", "s1", "s2", "stock"]
ORGANIZATIONS: tuple[Organization, ...] = get_args(Organization)
"""Those over which the tests run; `stock` is vLLM's own memory over the same kinds of state."""

Text = Annotated[str, StringConstraints(min_length=1)]


class Entry(Config):
    """Tests that have the same reason."""

    reason: Text
    tests: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Names within the module; without its parameters a name stands for all of them."""
    organizations: Annotated[tuple[Organization, ...], Field(min_length=1)] = ORGANIZATIONS

    def covers(self, test: str) -> bool:
        return test in self.tests or test.partition("[")[0] in self.tests


class Module(Config):
    """One module of vLLM's tests."""

    organizations: Annotated[tuple[Organization, ...], Field(min_length=1)] = ORGANIZATIONS
    """Those over which it runs."""
    does_not_apply: tuple[Entry, ...] = ()
    fails: tuple[Entry, ...] = ()

    def applies(self, test: str, organization: Organization) -> bool:
        return not _covered(self.does_not_apply, test, organization)

    def is_listed(self, test: str, organization: Organization) -> bool:
        return _covered(self.fails, test, organization)


class NotRun(Config):
    """Whole modules without a test that applies."""

    reason: Text
    modules: Annotated[tuple[Text, ...], Field(min_length=1)]


class Listing(Config):
    """The list as a whole."""

    modules: Annotated[dict[str, Module], Field(min_length=1)]
    not_run: tuple[NotRun, ...]

    @classmethod
    def read(cls, path: Path = LISTING) -> Self:
        """Read the list.

        Raises:
            ConfigError: names the field and the value.
        """
        return cls.parse(yaml.safe_load(path.read_text(encoding="utf-8")), path=path.name)

    def contradictions(self) -> list[str]:
        """Names that are listed twice for an organization, and modules that are run and not run."""
        left_out = [name for entry in self.not_run for name in entry.modules]
        found = [f"{name} is listed twice" for name in _repeated([*self.modules, *left_out])]
        for name, module in self.modules.items():
            for organization in ORGANIZATIONS:
                listed = [
                    test
                    for entry in (*module.does_not_apply, *module.fails)
                    if organization in entry.organizations
                    for test in entry.tests
                ]
                whole = set(listed)
                listed += [
                    test.partition("[")[0]
                    for test in whole
                    if "[" in test and test.partition("[")[0] in whole
                ]
                found += [
                    f"{name}::{test} is listed twice for {organization}"
                    for test in _repeated(listed)
                ]
        return found


class Outcome(Config):
    """What became of one test."""

    passed: bool
    num_made: int
    """Our managers, schedulers and splits that it used."""
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One module over one organization."""

    module: str
    organization: Organization
    num_applying: int
    num_passed: int
    num_listed: int
    news: tuple[str, ...]


def judge(
    listing: Listing,
    module: str,
    organization: Organization,
    collected: Iterable[str],
    outcomes: Mapping[str, Outcome],
) -> Verdict:
    """Compare a run with the list.

    Args:
        collected: every test of the module, those that do not apply included.
        outcomes: of the tests that ran.
    """
    expected, tests = listing.modules[module], list(collected)
    applying = [test for test in tests if expected.applies(test, organization)]
    listed = [test for test in applying if expected.is_listed(test, organization)]
    news = [
        f"{name} is listed and is no test of this module"
        for entry in (*expected.does_not_apply, *expected.fails)
        for name in entry.tests
        if not any(name in (test, test.partition("[")[0]) for test in tests)
    ]
    for test in applying:
        outcome = outcomes.get(test)
        if outcome is None:
            news.append(f"{test} did not run")
        elif outcome.num_made == 0:
            news.append(f"{test} asks nothing of ours")
        elif outcome.passed and test in listed:
            news.append(f"{test} is listed as failing and passes")
        elif not outcome.passed and test not in listed:
            news.append(f"{test} fails\n{outcome.failure}".rstrip())
    return Verdict(
        module=module,
        organization=organization,
        num_applying=len(applying),
        num_passed=sum(test in outcomes and outcomes[test].passed for test in applying),
        num_listed=len(listed),
        news=tuple(news),
    )


def _covered(entries: Iterable[Entry], test: str, organization: Organization) -> bool:
    return any(organization in entry.organizations and entry.covers(test) for entry in entries)


def _repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
