"""Table B-7 from its printed adjusted p alone: raw p on the 1/4096 grid, adjusted again.

Thirteen rows, two self-comparisons with p = 1 and two cross-budget contrasts make up the family;
one of the latter is not printed and is given the smallest adjusted p (analysis/paper/README).
"""

from fractions import Fraction

from analysis import config as configs
from analysis.published import printed_number, published_table
from analysis.reconstruction import holm_exact, on_grid, rank_groups
from analysis.tables.extension_paper import RECONSTRUCTED
from analysis.tables.registry import derived
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Table


@derived("B-7")
def from_paper() -> Table:
    """Every printed adjusted p of the family of 17."""
    config = configs.load("q6")
    seeds = len(config.design.seeds)
    assignments = 2**seeds
    places = {row: ("B-7", row, "holm_p") for row in published_table("B-7").index}
    places |= {
        test.id: test.published_p
        for test in config.family.interactions
        if test.published_p is not None
    }
    printed = {name: printed_number(*place) for name, place in places.items()}
    grid = {name: on_grid(number, assignments) for name, number in printed.items()}
    alike = {
        contrast.id: Fraction(1)
        for contrast in config.family.contrasts
        if contrast.is_self_comparison
    }
    unprinted = {
        test.id: min(grid.values()) for test in config.family.interactions if test.id not in grid
    }
    groups = rank_groups(grid | unprinted | alike, assignments)
    counts = {
        name: (int(group.first * assignments), int(group.last * assignments))
        for group in groups
        for name in group.names
    }
    raw = {name: Fraction(low, assignments) for name, (low, _) in counts.items()}
    adjusted = holm_exact(raw | alike)
    relations = [
        Relation(
            table=places[name][0],
            row=places[name][1],
            column=places[name][2],
            computed=float(adjusted[name]),
            formula=f"Holm over {config.family.size} of {_range(*counts[name])}/{assignments}",
        )
        for name in printed
    ]
    alpha = config.family.alpha
    reject = published_table("B-7")["reject"] == "True"
    agree = sum((adjusted[row] <= alpha) == reject[row] for row in reject.index)
    return relations_table(
        "B-7",
        "Admission confirmation: raw p that the printed adjusted ones force",
        relations,
        origin=RECONSTRUCTED,
        notes=(
            f"{agree} of {len(reject)} rejections at {alpha} follow.",
            f"Adjusted p not printed: {', '.join(unprinted)}; taken with the smallest printed one.",
            "Where several counts fit, the smallest is adjusted. Changes and intervals need "
            "seedwise throughput, which the paper does not print.",
        ),
    )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
