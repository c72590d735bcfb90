"""vLLM's own unit tests over our memory, and whether they end as expected.yaml says.

    python tests/peer/peer_run.py [ORGANIZATION ...] [--jobs N]

Exit code 0: all as listed; 1: something is new; 2: the tests are not to be had.
"""

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from peer_listing import ORGANIZATIONS, Listing, Organization, Outcome, Verdict, judge
from peer_sources import NoSources, archive, unpack_tests
from pydantic import BaseModel

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = Path("tests/v1/core")

ROW = "{:<12} {:<32} {:>6} {:>6} {:>7} {:>5}\n"


class Session(BaseModel):
    """What pytest wrote of its session."""

    collected: list[str] = []
    outcomes: dict[str, Outcome] = {}


def main() -> int:
    arguments = _parser().parse_args()
    listing = Listing.read()
    with TemporaryDirectory(prefix="hsexp-peer-") as name:
        folder = Path(name)
        try:
            unpack_tests(archive(), folder)
        except NoSources as error:
            sys.stderr.write(f"{error}\n")
            return 2
        news = _unlisted_modules(listing, folder)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            run = partial(_run, listing, folder)
            verdicts = [v for some in pool.map(run, arguments.organizations) for v in some]
    _print_table(verdicts)
    news += [f"{v.organization}: {v.module}::{text}" for v in verdicts for text in v.news]
    for text in news:
        sys.stdout.write(f"\nNEW  {text}\n")
    return 1 if news else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "organizations",
        nargs="*",
        type=_organization,
        default=ORGANIZATIONS,
        metavar="ORGANIZATION",
        help=f"all of {', '.join(ORGANIZATIONS)} where none is given",
    )
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, len(ORGANIZATIONS)))
    return parser


def _organization(text: str) -> Organization:
    for organization in ORGANIZATIONS:
        if text == organization:
            return organization
    raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(ORGANIZATIONS)}")


def _unlisted_modules(listing: Listing, folder: Path) -> list[str]:
    """Modules of the folder that the list does not name, and the other way round."""
    tests = folder / TESTS
    found = {str(path.relative_to(tests)) for path in tests.rglob("test_*.py")}
    named = {*listing.modules, *(name for entry in listing.not_run for name in entry.modules)}
    return [f"{name} is not in the list" for name in sorted(found - named)] + [
        f"{name} is listed and is no module of vLLM's" for name in sorted(named - found)
    ]


def _run(listing: Listing, folder: Path, organization: Organization) -> list[Verdict]:
    modules = [
        name for name, module in listing.modules.items() if organization in module.organizations
    ]
    with TemporaryDirectory(prefix="hsexp-peer-") as name:
        path = Path(name) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "--quiet", "--noconftest", "--tb=short"]
        command += ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
        command += ["-p", "peer_adapter", f"--organization={organization}", f"--outcomes={path}"]
        done = subprocess.run(
            [*command, *(str(TESTS / module) for module in modules)],
            cwd=folder,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(map(str, (HERE, ROOT))),
                "HF_HUB_OFFLINE": "1",
                "VLLM_LOGGING_LEVEL": "ERROR",
                "VLLM_NO_USAGE_STATS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        session = Session()
        if path.exists():
            session = Session.model_validate_json(path.read_text(encoding="utf-8"))
    if not session.outcomes:
        raise SystemExit(
            f"{organization}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return list(_judged(listing, organization, modules, session))


def _judged(
    listing: Listing, organization: Organization, modules: list[str], session: Session
) -> Iterator[Verdict]:
    collected: defaultdict[str, list[str]] = defaultdict(list)
    outcomes: defaultdict[str, dict[str, Outcome]] = defaultdict(dict)
    for node in session.collected:
        module, _, test = node.partition("::")
        collected[module].append(test)
    for node, outcome in session.outcomes.items():
        module, _, test = node.partition("::")
        outcomes[module][test] = outcome
    for module in modules:
        yield judge(listing, module, organization, collected[module], outcomes[module])


def _print_table(verdicts: list[Verdict]) -> None:
    sys.stdout.write(ROW.format("memory", "module", "apply", "pass", "listed", "new"))
    for v in verdicts:
        counts = (v.num_applying, v.num_passed, v.num_listed, len(v.news))
        sys.stdout.write(ROW.format(v.organization, v.module, *counts))


if __name__ == "__main__":
    sys.exit(main())
