"""Workloads that fix their own sharing: the campaign's fraction q does not apply to them."""

from collections.abc import Mapping
from typing import Any

from hsexp.config.campaigns import Block
from hsexp.workload import KINDS_WITH_OWN_SHARING


def fixer_of(law: Mapping[str, Any]) -> str | None:
    """Who fixes the sharing, in words; None where the axis does."""
    kind = law.get("kind")
    if not isinstance(kind, str) or kind not in KINDS_WITH_OWN_SHARING:
        return None
    return "a trace" if kind == "trace" else f"workload {law.get('name')}"


def refusals(fixer: str, block: Block) -> list[str]:
    """A line if the block varies the sharing."""
    if len(block.sharing) <= 1:
        return []
    return [
        f"workload.sharing must be one value, got {', '.join(map(str, block.sharing))}: {fixer} "
        "fixes its own sharing, so all of them are one run"
    ]


def notes(law: Mapping[str, Any], sharing: float | None) -> list[str]:
    """A line if the campaign has a value, and the workload does not follow it."""
    fixer = fixer_of(law)
    if fixer is None or sharing is None:
        return []
    return [f"sharing {sharing} of the campaign is not applied: {fixer} fixes its own"]
