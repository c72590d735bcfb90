"""Figure 1: the pages of an attention block and a checkpoint in each organization, to scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from analysis.errors import AnalysisError
from figures import style
from figures.registry import drawing
from hsexp.memory.organizations import D0, S0, S1, S2, Organization
from hsexp.plan.resolve import Resolved

KIB = 1024
TOKENS = 512
"""Attention tokens drawn; a longer block is drawn whole."""

KV, SSM, CONV, UNUSED = "#56B4E9", "#E69F00", "#000000", "#EDEDED"
"""State types: Okabe-Ito colours that no organization uses."""
OTHERS = "#8C8C8C"
"""Convolution states of other checkpoints."""

_GAP = 22.0
"""Space between neighbouring pages, in KiB of the drawing's scale."""
_BAR = 0.40
"""Height of a page, as a fraction of a row."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a page that one state fills, or that is unused."""

    kib: float
    color: str
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One physical unit."""

    pieces: tuple[Piece, ...]
    label: str = ""
    """Text below the page."""

    @property
    def kib(self) -> float:
        return sum(piece.kib for piece in self.pieces)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One organization: a row of the drawing."""

    name: str
    kind: str
    title: str
    attention: tuple[Page, ...]
    attention_note: str
    checkpoint: tuple[Page, ...]
    checkpoint_note: str
    shares_pool: bool


@drawing("1", campaign="capacity")
def draw(resolved: Resolved) -> Figure:
    """All organizations of a capacity campaign, one layer. Needs no run.

    Raises:
        AnalysisError: the model has several recurrent layers for each attention layer.
    """
    rows = layouts(resolved)
    figure, axis = plt.subplots(figsize=(style.PAGE_IN, 4.1))
    column = max(_width(row.attention) for row in rows) + 330.0
    right = column + max(_width(row.checkpoint) for row in rows)
    for index, row in enumerate(rows):
        _draw_row(axis, row, y=float(len(rows) - 1 - index), column=column, right=right)
    axis.text(
        0.0,
        len(rows) - 0.34,
        f"attention KV of {_tokens(resolved):,} tokens",
        weight="bold",
        va="bottom",
    )
    axis.text(column, len(rows) - 0.34, "one recurrent checkpoint", weight="bold", va="bottom")
    _scale_bar(axis, x=right - 500.0, y=len(rows) - 0.26)
    axis.set_xlim(-640.0, right + 70.0)
    axis.set_ylim(-0.42, len(rows) - 0.08)
    axis.axis("off")
    figure.legend(
        handles=[
            Patch(facecolor=KV, label="attention KV"),
            Patch(facecolor=SSM, label="recurrent (SSM) state"),
            Patch(facecolor=CONV, label="convolution state"),
            Patch(facecolor=OTHERS, label="of other checkpoints"),
            Patch(facecolor=UNUSED, edgecolor=style.FAINT, hatch="////", label="unused"),
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 0.075),
        ncols=5,
        columnspacing=1.6,
    )
    style.footer(
        figure,
        f"Geometry, to scale: one layer of {resolved.launch.model.name} as the organization "
        "classes lay it out; nothing is measured or simulated here.",
        "Grey frames are pools: S0, S1 and S2 share one, D0 keeps two of fixed size.",
    )
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.13)
    return figure


def layouts(resolved: Resolved) -> list[Layout]:
    """The organizations with the sizes given by their classes.

    Raises:
        AnalysisError: the model has several recurrent layers for each attention layer.
    """
    model = resolved.launch.model
    if model.composites_per_checkpoint > 1:
        raise AnalysisError(
            "figure 1 draws one recurrent layer for each attention layer, and model "
            f"{model.name} has {model.composites_per_checkpoint}"
        )
    tokens = _tokens(resolved)
    return [
        _layout(memory.organization.name.upper(), memory.layout, tokens)
        for memory in resolved.memories
    ]


def _tokens(resolved: Resolved) -> int:
    return max(TOKENS, *(memory.organization.block_size for memory in resolved.memories))


def _layout(name: str, organization: Organization, tokens: int) -> Layout:
    match organization:
        case S0():
            return _s0(name, organization, tokens)
        case S2():
            return _s2(name, organization, tokens)
        case S1():
            return _s1(name, organization, tokens)
        case D0():
            return _d0(name, organization, tokens)
        case _:
            raise AnalysisError(f"figure 1 cannot draw the layout of organization {name}")


def _s0(name: str, s0: S0, tokens: int) -> Layout:
    geometry, page = s0.geometry, s0.page_bytes / KIB
    kv = _kv_kib(s0)
    ssm, conv = geometry.ssm_bytes / KIB, geometry.conv_bytes / KIB
    return Layout(
        name=name,
        kind=s0.name,
        title="coarse\nshared pages",
        attention=(
            Page(
                pieces=(
                    Piece(kib=kv, color=KV, label=f"KV {kv:g}"),
                    Piece(kib=page - kv, color=UNUSED, label=f"unused {page - kv:,g}"),
                )
            ),
        )
        * -(-tokens // s0.block_size),
        attention_note=f"one {page:,g}-KiB page a {s0.block_size}-token block",
        checkpoint=(
            Page(
                pieces=(
                    Piece(kib=ssm, color=SSM, label=f"SSM {ssm:,g}"),
                    Piece(kib=conv, color=CONV),
                )
            ),
        ),
        checkpoint_note=f"every {s0.checkpoint_grid:,} tokens, one {page:,g}-KiB page",
        shares_pool=True,
    )


def _s1(name: str, s1: S1, tokens: int) -> Layout:
    page, conv = s1.page_bytes / KIB, s1.geometry.conv_bytes / KIB
    return Layout(
        name=name,
        kind=s1.name,
        title="paged\ncheckpoints",
        attention=(_kv_page(s1),) * -(-tokens // s1.block_size),
        attention_note=f"one {page:g}-KiB page a {s1.block_size}-token block",
        checkpoint=(
            *_members(s1),
            Page(
                pieces=(
                    Piece(kib=conv, color=CONV),
                    Piece(kib=page - conv, color=UNUSED, label=f"unused {page - conv:g}"),
                )
            ),
        ),
        checkpoint_note=f"every {s1.checkpoint_grid:,} tokens, {s1.num_members} member pages and a "
        f"page for {conv:g} KiB",
        shares_pool=True,
    )


def _s2(name: str, s2: S2, tokens: int) -> Layout:
    page, conv = s2.page_bytes / KIB, s2.geometry.conv_bytes / KIB
    slot = page / s2.num_slots
    slots = [
        Piece(kib=kib, color=color)
        for index in range(s2.num_slots)
        for kib, color in ((conv, OTHERS if index else CONV), (slot - conv, UNUSED))
    ]
    return Layout(
        name=name,
        kind=s2.name,
        title="packed\nconvolution",
        attention=(_kv_page(s2),) * -(-tokens // s2.block_size),
        attention_note=f"one {page:g}-KiB page a {s2.block_size}-token block",
        checkpoint=(*_members(s2), Page(pieces=tuple(slots))),
        checkpoint_note=f"every {s2.checkpoint_grid:,} tokens, {s2.num_members} member pages and a "
        f"{slot:g}-KiB slot",
        shares_pool=True,
    )


def _d0(name: str, d0: D0, tokens: int) -> Layout:
    geometry, unit = d0.geometry, d0.unit_bytes / KIB
    ssm, conv = geometry.ssm_bytes / KIB, geometry.conv_bytes / KIB
    units = -(-tokens // d0.block_size)
    share = 100.0 * float(d0.attention_fraction)
    return Layout(
        name=name,
        kind=d0.name,
        title="native\ndual pools",
        attention=tuple(Page(pieces=(Piece(kib=unit, color=KV),)) for _ in range(units)),
        attention_note=f"{units} units of {d0.block_size} tokens, {unit:g} KiB; "
        f"pool of {share:.1f} %",
        checkpoint=(
            Page(
                pieces=(
                    Piece(kib=ssm, color=SSM, label=f"SSM {ssm:,g}"),
                    Piece(kib=conv, color=CONV),
                )
            ),
        ),
        checkpoint_note=f"every {d0.checkpoint_grid:,} tokens, one {ssm + conv:,g}-KiB unit; "
        f"pool of {100.0 - share:.1f} %",
        shares_pool=False,
    )


def _kv_page(organization: S1) -> Page:
    kv = _kv_kib(organization)
    return Page(pieces=(Piece(kib=kv, color=KV, label=f"KV {kv:g}"),))


def _members(organization: S1) -> tuple[Page, ...]:
    page = organization.page_bytes / KIB
    return tuple(
        Page(pieces=(Piece(kib=page, color=SSM, label=f"SSM {member}"),))
        for member in range(organization.num_members)
    )


def _kv_kib(organization: Organization) -> float:
    return organization.block_size * organization.geometry.kv_token_bytes / KIB


def _draw_row(axis: Axes, row: Layout, *, y: float, column: float, right: float) -> None:
    color = style.color(row.kind)
    axis.text(-610.0, y + 0.30, row.name, color=color, fontsize=13, weight="bold", va="center")
    axis.text(-610.0, y - 0.03, row.title, fontsize=7.5, va="center", linespacing=1.15)
    if row.shares_pool:
        _frame(axis, 0.0, right, y)
    else:
        _frame(axis, 0.0, column - 170.0, y)
        _frame(axis, column, right, y)
    _draw_pages(axis, row.attention, x=0.0, y=y)
    _draw_pages(axis, row.checkpoint, x=column, y=y)
    axis.text(0.0, y - 0.10, row.attention_note, fontsize=7, va="top")
    axis.text(column, y - 0.10, row.checkpoint_note, fontsize=7, va="top")


def _draw_pages(axis: Axes, pages: Sequence[Page], *, x: float, y: float) -> None:
    gap = _GAP if len(pages) <= 8 else 0.0
    for page in pages:
        start = x
        for piece in page.pieces:
            unused = piece.color == UNUSED
            axis.add_patch(
                Rectangle(
                    (start, y),
                    piece.kib,
                    _BAR,
                    facecolor=piece.color,
                    edgecolor="#BBBBBB" if unused else "none",
                    hatch="////" if unused else None,
                    linewidth=0.0,
                )
            )
            if piece.label:
                axis.text(
                    start + piece.kib / 2.0,
                    y + _BAR / 2.0,
                    piece.label,
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    bbox={"facecolor": UNUSED, "edgecolor": "none", "pad": 1.2} if unused else None,
                )
            start += piece.kib
        axis.add_patch(
            Rectangle((x, y), page.kib, _BAR, facecolor="none", edgecolor=style.INK, linewidth=0.7)
        )
        x = start + gap


def _frame(axis: Axes, left: float, right: float, y: float) -> None:
    axis.add_patch(
        FancyBboxPatch(
            (left - 25.0, y - 0.32),
            right - left + 50.0,
            0.83,
            boxstyle="round,pad=0,rounding_size=30",
            mutation_aspect=1.0 / 1100.0,
            facecolor="#F7F7F7",
            edgecolor="#BBBBBB",
            linewidth=0.7,
            zorder=0,
        )
    )


def _scale_bar(axis: Axes, *, x: float, y: float) -> None:
    length = 500.0
    axis.plot([x, x + length], [y, y], color=style.INK, linewidth=1.0, solid_capstyle="butt")
    axis.text(x - 40.0, y, "500 KiB", fontsize=7, ha="right", va="center")


def _width(pages: Sequence[Page]) -> float:
    return sum(page.kib for page in pages) + _GAP * (len(pages) - 1) * (len(pages) <= 8)
