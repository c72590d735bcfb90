"""The cells of the continuation campaign: one a treatment, organization, dtype, depth and seed."""

import itertools
from typing import Any

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.campaigns import ContinuationCampaign
from hsexp.config.catalog import read_option
from hsexp.config.device import HardwareConfig
from hsexp.config.launch import Launch
from hsexp.memory.geometry import ModelConfig, ModelShape, ServedMamba2, StateGeometry
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.organizations.s2 import S2Config
from hsexp.plan.cells import Cell, Plan, content_key
from hsexp.plan.resolve import memory_for
from runners.continuation.run import ContinuationRun
from runners.continuation.treatments import TREATMENTS

DTYPES = {2: "bfloat16", 4: "float32"}


def make_plan(launch: Launch, campaign: ContinuationCampaign) -> Plan:
    """Every check, seeds outermost, treatments innermost: those of one arm share their references.

    Raises:
        ConfigError: a treatment or an organization is unknown, or a cell is refused.
    """
    _require_known(campaign.treatments)
    hardware = _require_runnable(launch, campaign)
    pinned = launch.organization
    organizations = campaign.organizations if pinned is None else (pinned.name,)
    cells: list[Cell] = []
    notes: list[str] = []
    for seed, dtype_bytes, name, exact, depth in itertools.product(
        launch.seeds or campaign.seeds,
        campaign.dtype_bytes,
        organizations,
        campaign.exact,
        campaign.depths_tokens,
    ):
        model = _served(launch.model).model_copy(update={"dtype_bytes": dtype_bytes})
        config = _organization(launch, campaign, name, model)
        grid = memory_for(config, model).layout.checkpoint_grid
        if depth < grid:
            notes.append(f"depth {depth} has no boundary for {name}, whose grid is {grid} tokens")
            continue
        cells += (
            _cell(
                campaign.name,
                name,
                ContinuationRun(
                    model=model,
                    organization=config,
                    exact=exact,
                    depth_tokens=depth,
                    treatment=treatment,
                    token_budget=launch.scheduler.token_budget,
                    cap=campaign.cap,
                    hardware=hardware,
                    seed=seed,
                ),
            )
            for treatment in campaign.treatments
            if TREATMENTS[treatment].applies_to(config.kind)
        )
    return Plan(
        campaign=campaign.name,
        cells=tuple(cells),
        contract=_contract(campaign.name, cells),
        notes=tuple(dict.fromkeys(notes)),
        registration={"seeds": list(campaign.seeds), "treatments": list(campaign.treatments)},
    )


def _require_runnable(launch: Launch, campaign: ContinuationCampaign) -> HardwareConfig:
    """The hardware of a launch whose engines can be run.

    Raises:
        ConfigError: the model has weights of its own, or the device is only simulated.
    """
    if launch.model.checkpoint is not None:
        raise ConfigError(
            f"model.checkpoint must be null for campaign {campaign.name}, whose weights come from "
            f"its seeds, got {launch.model.checkpoint}"
        )
    hardware = launch.device.hardware
    if hardware is None:
        raise ConfigError(
            f"device.hardware is required to run vllm, got null for device {launch.device.name}: "
            "it is only simulated"
        )
    return hardware


def _cell(campaign: str, organization: str, run: ContinuationRun) -> Cell:
    config = run.model_dump(mode="json")
    axes = {
        "organization": organization,
        "dtype": DTYPES[run.model.dtype_bytes],
        "exact": run.exact,
        "depth_tokens": run.depth_tokens,
        "treatment": run.treatment,
        "seed": run.seed,
    }
    paired = {axis: axes[axis] for axis in ("depth_tokens", "treatment", "seed")}
    return Cell(
        campaign=campaign,
        block="checks",
        axes=axes,
        config=config,
        cell_id=content_key(config),
        pair_id=content_key(paired),
    )


def _served(model: ModelShape) -> ModelConfig:
    served: ModelConfig = parse_union(ServedMamba2, model, path="model")
    return served


def _organization(
    launch: Launch, campaign: ContinuationCampaign, name: str, model: ModelConfig
) -> Any:
    if launch.organization is not None:
        return launch.organization.fitted(model)
    config = parse_union(OrganizationConfig, read_option("organization", name), path=name)
    if isinstance(config, S2Config):
        page_bytes = config.block_size * StateGeometry.of(model).kv_token_bytes
        config = config.model_copy(update={"slot_bytes": page_bytes // campaign.slots_per_slab})
    return config


def _contract(campaign: str, cells: list[Cell]) -> dict[str, Any]:
    """What the checks share. What an organization is depends on the bytes of an element too."""
    contract: dict[str, Any] = {"campaign": campaign, "engine": "vllm"}
    organizations: dict[str, Any] = {}
    for cell in cells:
        run, axes = cell.config, cell.axes
        model = {key: value for key, value in run["model"].items() if key != "dtype_bytes"}
        same = {key: run[key] for key in ("hardware", "token_budget", "cap")}
        contract |= {"model": model, **same}
        organizations[f"{axes['organization']}/{axes['dtype']}"] = run["organization"]
    return contract | {"options": {"organization/dtype": organizations}}


def _require_known(treatments: tuple[str, ...]) -> None:
    for name in treatments:
        if name not in TREATMENTS:
            raise ConfigError(
                f"campaign.treatments: {name} is unknown; choose from {', '.join(TREATMENTS)}"
            )
