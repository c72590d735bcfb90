"""`campaign=capacity`: storage of state sets and budgets in every organization, no engine."""

from dataclasses import dataclass
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from hsexp.config.base import parse_union
from hsexp.config.campaigns import FeasibilityConfig, MixConfig
from hsexp.config.catalog import read_option
from hsexp.config.launch import Launch
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelConfig, StateGeometry
from hsexp.memory.organizations import (
    D0,
    Organization,
    OrganizationConfig,
    PoolPlan,
    StateMix,
    create,
)

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class StorageRow:
    """One state set: allocated bytes and ideal capacity per organization."""

    mix: StateMix
    slabs: int
    """Slabs that S2 needs at least."""
    allocated_bytes: dict[str, int]
    capacity: dict[str, int]
    """Whole repeats of the mix that fit the capacity budget (A8, D2)."""


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """One nominal budget: what each organization makes of it (Table B-2)."""

    budget: BudgetConfig
    plans: dict[str, PoolPlan]


@dataclass(frozen=True, kw_only=True)
class FeasibilityRow:
    """One state set against a budget (Table A-2)."""

    organization: str
    allocated_bytes: dict[str, int]
    """Per pool kind: attention, recurrent."""
    limits_bytes: dict[str, Fraction]
    """Per pool; a shared pool has one."""
    feasible: bool


def storage_rows(
    organizations: dict[str, Organization], mixes: tuple[MixConfig, ...], capacity_bytes: int
) -> list[StorageRow]:
    """Tables A-1 and the capacities of Appendix A for each mix."""
    rows = []
    for config in mixes:
        mix = StateMix(
            attention_tokens=config.attention_tokens,
            checkpoints=config.checkpoints,
            slabs=config.slabs,
        )
        ideal = StateMix(attention_tokens=mix.attention_tokens, checkpoints=mix.checkpoints)
        rows.append(
            StorageRow(
                mix=mix,
                slabs=max((o.min_slabs(mix) for o in organizations.values()), default=0),
                allocated_bytes={name: o.mix_bytes(mix) for name, o in organizations.items()},
                capacity={
                    name: o.capacity(capacity_bytes, ideal) for name, o in organizations.items()
                },
            )
        )
    return rows


def budget_rows(
    organizations: dict[str, Organization], budgets: list[BudgetConfig]
) -> list[BudgetRow]:
    """Table B-2: whole pages and bytes of each organization under each budget."""
    return [
        BudgetRow(
            budget=budget,
            plans={name: o.plan(budget.bytes) for name, o in organizations.items()},
        )
        for budget in budgets
    ]


def feasibility_rows(
    organizations: dict[str, Organization], model: ModelConfig, config: FeasibilityConfig
) -> list[FeasibilityRow]:
    """Table A-2: the same state set in D0's split and in the shared pools."""
    mix = StateMix(attention_tokens=config.mix.attention_tokens, checkpoints=config.mix.checkpoints)
    rows = []
    for name, organization in organizations.items():
        if isinstance(organization, D0):
            organization = D0(
                organization.config,
                StateGeometry.of(model),
                attention_fraction=config.attention_fraction,
            )
        attention = StateMix(attention_tokens=mix.attention_tokens, checkpoints=0)
        attention_bytes = organization.mix_bytes(attention)
        rows.append(
            FeasibilityRow(
                organization=name,
                allocated_bytes={
                    "attention": attention_bytes,
                    "recurrent": organization.mix_bytes(mix) - attention_bytes,
                },
                limits_bytes=organization.limits(config.nominal_bytes),
                feasible=organization.fits(config.nominal_bytes, mix, 1),
            )
        )
    return rows


def print_capacity(launch: Launch, console: Console) -> None:
    """Print Table 1's sizes, Table A-1, Table A-2 and Table B-2 for the chosen model.

    Raises:
        ConfigError: an organization or budget does not exist.
    """
    campaign = launch.capacity
    organizations = {
        name: create(
            parse_union(OrganizationConfig, read_option("organization", name), path=name),
            launch.model,
        )
        for name in (
            campaign.organizations if launch.organization is None else (launch.organization.name,)
        )
    }
    budgets = (
        [BudgetConfig.parse(read_option("budget", name)) for name in campaign.budgets]
        if launch.budget is None
        else [launch.budget]
    )
    _print_geometry(organizations, launch.model, console)
    rows = storage_rows(organizations, campaign.mixes, campaign.capacity_bytes)
    _print_storage(rows, campaign.capacity_bytes, console)
    _print_budgets(budget_rows(organizations, budgets), console)
    _print_feasibility(
        feasibility_rows(organizations, launch.model, campaign.feasibility),
        campaign.feasibility,
        console,
    )


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _print_geometry(
    organizations: dict[str, Organization], model: ModelConfig, console: Console
) -> None:
    geometry = StateGeometry.of(model)
    table = _table(
        f"Table 1. State of one {model.name} layer: {geometry.kv_token_bytes} B of KV a token, "
        f"{geometry.ssm_bytes / KIB:g} KiB SSM, {geometry.conv_bytes / KIB:g} KiB convolution",
        ["organization", "attention block", "checkpoint grid", "attention unit", "checkpoint"],
    )
    for name, organization in organizations.items():
        block = StateMix(attention_tokens=organization.block_size, checkpoints=0)
        state = StateMix(attention_tokens=0, checkpoints=1)
        table.add_row(
            name,
            f"{organization.block_size} tokens",
            f"{organization.checkpoint_grid} tokens",
            f"{organization.mix_bytes(block) / KIB:g} KiB",
            f"{organization.mix_bytes(state) / KIB:g} KiB",
        )
    console.print(table)


def _print_storage(rows: list[StorageRow], capacity_bytes: int, console: Console) -> None:
    names = list(rows[0].allocated_bytes)
    mix = ["attention tokens", "checkpoints", "slabs"]
    storage = _table(
        "Table A-1. Storage of the same state sets", mix + [f"{name} MiB" for name in names]
    )
    capacity = _table(
        f"How often each state set fits {capacity_bytes / MIB:g} MiB, ideally packed "
        "(Appendix A.1, A.2)",
        mix[:2] + names,
    )
    for row in rows:
        tokens, checkpoints = str(row.mix.attention_tokens), str(row.mix.checkpoints)
        storage.add_row(
            tokens,
            checkpoints,
            str(row.mix.slabs or row.slabs),
            *(f"{row.allocated_bytes[name] / MIB:.6f}" for name in names),
        )
        capacity.add_row(tokens, checkpoints, *(str(row.capacity[name]) for name in names))
    console.print(storage)
    console.print(capacity)


def _print_budgets(rows: list[BudgetRow], console: Console) -> None:
    table = _table(
        "Table B-2. Whole pages under a nominal budget (with the null page of each pool)",
        ["budget", "nominal B", "organization", "pool", "pages", "page B", "bytes"],
    )
    for row in rows:
        for name, plan in row.plans.items():
            for pool in plan.pools:
                table.add_row(
                    row.budget.name,
                    f"{row.budget.bytes:,}",
                    name,
                    pool.name,
                    f"{pool.num_pages:,}",
                    f"{pool.page_bytes:,}",
                    f"{pool.total_bytes:,}",
                )
    console.print(table)


def _print_feasibility(
    rows: list[FeasibilityRow], config: FeasibilityConfig, console: Console
) -> None:
    table = _table(
        f"Table A-2. {config.mix.attention_tokens} attention tokens and "
        f"{config.mix.checkpoints} checkpoints in {config.nominal_bytes / MIB:g} MiB",
        ["organization", "attention MiB", "recurrent MiB", "total MiB", "limits MiB", "fits"],
    )
    for row in rows:
        table.add_row(
            row.organization,
            *map(_mib, row.allocated_bytes.values()),
            _mib(sum(row.allocated_bytes.values())),
            " + ".join(map(_mib, row.limits_bytes.values())),
            "yes" if row.feasible else "no",
        )
    console.print(table)


def _mib(size_bytes: int | Fraction) -> str:
    return f"{float(size_bytes) / MIB:.9g}"
