"""Reads conf/analysis and the designs of conf/campaign as frozen values.

conf/analysis/<campaign>.yaml lists a campaign's tables and figures; conf/analysis/families holds
the families of tests that span several campaigns.
"""

from typing import Any, TypeVar

from analysis.errors import AnalysisError
from analysis.families import AnalysisConfig, Design, Family, Listing
from hsexp.config.base import ConfigError
from hsexp.config.catalog import options, read_file, remembered, shown

Kind = TypeVar("Kind", bound=Listing)

GENERIC = ("settings",)
"""Tables, and figures, of every campaign; the only ones where conf/analysis says nothing."""


def load(campaign: str) -> AnalysisConfig:
    """The analysis of a campaign with a family of its own.

    Raises:
        AnalysisError: there is none, or its file is refused (field and value are named).
    """
    data = _analysis(campaign)
    try:
        return parse(data, blocks=_blocks(campaign))
    except ConfigError as error:
        raise AnalysisError(f"{shown('analysis', campaign)}: {error}") from None


def parse(data: dict[str, Any], *, blocks: dict[str, Any]) -> AnalysisConfig:
    """Build the value from plain data; `design` names one of the campaign's blocks.

    Raises:
        ConfigError: a field is refused; it is named with its value.
    """
    design = data.get("design")
    if design not in blocks:
        raise ConfigError(
            f"design must be a block of the campaign ({', '.join(blocks)}), got {design!r}"
        )
    return AnalysisConfig.parse(data | {"design": blocks[design]})


def listing(campaign: str, *, is_recorded: bool = False) -> Listing:
    """Tables and figures of a campaign: those of conf/analysis, else `GENERIC`.

    Args:
        is_recorded: there is a ledger of the campaign, so that it needs no file in conf.

    Raises:
        AnalysisError: there are none, or the file is refused.
    """
    if campaign not in campaigns():
        title = campaign if is_recorded else _title_of_runs(campaign)
        if title is not None:
            return Listing(campaign=campaign, title=title, tables=GENERIC, figures=GENERIC)
    data = _analysis(campaign)
    try:
        return Listing.parse({name: data[name] for name in Listing.model_fields if name in data})
    except ConfigError as error:
        raise AnalysisError(f"{shown('analysis', campaign)}: {error}") from None


def _title_of_runs(campaign: str) -> str | None:
    """Title of a campaign of serving runs; None for any other one, or where there is none."""
    if campaign not in options("campaign"):
        return None
    data = read_file("campaign", campaign).get("campaign", {})
    return str(data.get("title", campaign)) if data.get("kind") == "serving" else None


def parsed(campaign: str, kind: type[Kind]) -> Kind:
    """The analysis of a campaign that is declared in its own way.

    Raises:
        AnalysisError: there is none, or its file is refused (field and value are named).
    """
    data = _analysis(campaign)
    try:
        return kind.parse(data)
    except ConfigError as error:
        raise AnalysisError(f"{shown('analysis', campaign)}: {error}") from None


def campaigns() -> list[str]:
    """Campaigns that can be analysed."""
    return options("analysis")


@remembered
def family(name: str) -> Family:
    """A family of conf/analysis/families.

    Raises:
        AnalysisError: there is none, or its file is refused.
    """
    if name not in options("analysis/families"):
        raise AnalysisError(
            f"family {name} is unknown; choose from {', '.join(options('analysis/families'))}"
        )
    data = read_file("analysis/families", name)
    try:
        return Family.parse(data)
    except ConfigError as error:
        raise AnalysisError(f"{shown('analysis/families', name)}: {error}") from None


def families_of(campaign: str) -> list[Family]:
    """Families of conf/analysis/families with a contrast on the campaign's runs.

    Raises:
        AnalysisError: the file of a family is refused.
    """
    every = map(family, options("analysis/families"))
    return [
        each
        for each in every
        if any(one.campaign == campaign for one in (*each.contrasts, *each.components))
    ]


def has_family(campaign: str) -> bool:
    """Whether the analysis of a campaign declares a family of its own (`load`)."""
    return campaign in campaigns() and {"family", "design"} <= _analysis(campaign).keys()


@remembered
def block_design(campaign: str, block: str) -> Design:
    """One block of conf/campaign, with the blocks that share its runs.

    Raises:
        AnalysisError: the campaign or the block does not exist, or is refused.
    """
    if campaign not in options("campaign"):
        raise AnalysisError(
            f"campaign {campaign} does not exist; choose from {', '.join(options('campaign'))}"
        )
    blocks = _blocks(campaign)
    if block not in blocks:
        raise AnalysisError(
            f"campaign {campaign} has no block {block}; choose from {', '.join(blocks)}"
        )

    def law(name: str) -> tuple[Any, ...]:
        return tuple(blocks[name].get(key) for key in ("workload", "arrivals", "separate", "exact"))

    same_law = [name for name in blocks if law(name) == law(block)]
    try:
        return Design.parse(blocks[block] | {"same_law": same_law})
    except ConfigError as error:
        raise AnalysisError(f"{shown('campaign', campaign)}: {error}") from None


def _analysis(campaign: str) -> dict[str, Any]:
    if campaign not in campaigns():
        raise AnalysisError(
            f"campaign {campaign} has no analysis; choose from {', '.join(campaigns())}"
        )
    try:
        return read_file("analysis", campaign)
    except ConfigError as error:
        raise AnalysisError(str(error)) from None


def _blocks(campaign: str) -> dict[str, Any]:
    blocks: dict[str, Any] = read_file("campaign", campaign)["campaign"]["blocks"]
    return blocks
