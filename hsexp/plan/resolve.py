r"""Resolves a launch: the one place where its settings are refused, scaled and read.

    command line      campaign               conf/
    a pin        ->   the options it names,  or a scale's
         \_____________________|____________________/
                               v
                  Resolved: a launch and options that fit together

Every kind of campaign is resolved here, so that all of them accept or refuse an override in the
same words. A misfit is a `ValueError` below this module and a `ConfigError` above it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hsexp.config.axes import AXES
from hsexp.config.base import ConfigError, parse_union
from hsexp.config.campaigns import Campaign, FixedWorkCampaign, LabCampaign, ServingCampaign
from hsexp.config.catalog import changes, options, read_option, read_root
from hsexp.config.launch import Launch
from hsexp.config.overrides import given_settings
from hsexp.memory import MemoryConfig, build_memory
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelShape
from hsexp.memory.organizations import Organization, OrganizationConfig
from hsexp.memory.organizations.base import OrganizationSettings
from hsexp.plan.devices import priced
from hsexp.plan.scale import scaled, scaled_option

_GROUP_AXES = tuple(axis for axis in AXES if axis.options is not None)
"""Axes whose values name options of a Hydra group."""

_OPEN_ENDED = ("bytes",)
"""Options that are incomplete by themselves."""

_OF_BLOCKS = {
    "workload": "workload",
    "arrivals": "arrivals",
    "scheduler.separate": "separate",
    "engine.exact": "exact",
}
"""Setting of a launch -> field of a block that overrides it."""


# -- refusing ------------------------------------------------------------------------------------


@contextmanager
def refused(where: str, misfit: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn a misfit inside the `with` into a refusal that names its place.

    Args:
        where: the settings that are tried together: `organization d0 under budget b63`.
        misfit: the error to catch.

    Raises:
        ConfigError: names the place and the misfit.
    """
    try:
        yield
    except ConfigError:
        raise
    except misfit as error:
        raise ConfigError(f"{where}: {error}") from None


def require_settings(launch: Launch, overrides: Sequence[str]) -> None:
    """Refuse settings on the command line, and pins, that the campaign does not use.

    Args:
        overrides: the command line as Hydra read it.

    Raises:
        ConfigError: names each one that would change nothing, with its value.
    """
    campaign = launch.campaign
    assert campaign is not None
    if foreign := foreign_settings(launch, overrides):
        assert campaign.settings is not None
        refusals = [
            means_nothing(f"campaign {campaign.name}", *setting) for setting in foreign.items()
        ]
        raise ConfigError("\n".join([*refusals, f"it uses {', '.join(sorted(campaign.settings))}"]))
    if isinstance(campaign, ServingCampaign):
        given = given_settings(overrides)
        _require_free(scaled(launch).serving, given)
        _require_drawn_arrivals(launch, given)


def foreign_settings(launch: Launch, overrides: Sequence[str]) -> dict[str, str]:
    """Settings on the command line that the campaign does not use, with their values as typed."""
    campaign, given = launch.campaign, given_settings(overrides)
    assert campaign is not None
    for axis in AXES:
        setting, values = axis.spelling or axis.name, axis.pinned(launch)
        if values is not None and setting not in given and setting.split(".")[0] not in given:
            given[setting] = ", ".join(map(str, values))
    return {setting: value for setting, value in given.items() if not campaign.uses(setting)}


def means_nothing(to: str, setting: str, value: str) -> str:
    """Message that refuses a setting."""
    return f"{setting} means nothing to {to}" + (f", got {value}" if value else "")


def _require_free(campaign: ServingCampaign, given: Mapping[str, str]) -> None:
    """Refuse a setting of the launch that blocks set themselves.

    Raises:
        ConfigError: names the setting, the blocks and their values.
    """
    for setting, field in _OF_BLOCKS.items():
        own = {name: getattr(block, field) for name, block in campaign.blocks.items()}
        said = [f"{name} has {value}" for name, value in own.items() if value is not None]
        if setting in given and said:
            raise ConfigError(
                f"{setting} is set by blocks of campaign {campaign.name} themselves "
                f"({', '.join(said)}), got {given[setting]}"
            )


def _require_drawn_arrivals(launch: Launch, given: Mapping[str, str]) -> None:
    """Refuse a law of arrivals where no cell draws any.

    Raises:
        ConfigError: names the setting and its value.
    """
    rates = {rate for block in launch.serving.blocks.values() for rate in block.rate_per_s}
    if rates != {None} or launch.arrivals["rate_per_s"] is not None:
        return
    for setting, value in given.items():
        if setting.split(".")[0] == "arrivals" and setting != "arrivals.rate_per_s":
            raise ConfigError(
                f"{setting} {value} draws nothing: the trace is replayed with its own times; "
                "workload.keep_arrivals=false arrivals.rate_per_s=3 draws arrivals"
            )


# -- resolving -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Options of the axes' groups, checked and at the launch's scale. A pin replaces its option."""

    options: Mapping[str, Mapping[str, Any]]
    """Group -> name -> option."""

    def option(self, group: str, name: str) -> Any:
        """One option.

        Raises:
            ConfigError: there is none of that name; the message lists those there are.
        """
        if name not in self.options[group]:
            read_option(group, name)
        return self.options[group][name]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A launch at its scale, and the options that it draws from."""

    launch: Launch
    catalog: Catalog
    notes: tuple[str, ...]
    """Remarks for the user on how the launch was read."""
    memories: tuple[MemoryConfig, ...] = ()
    """One for each organization that the campaign names outside of blocks, without policies."""
    budgets: tuple[BudgetConfig, ...] = ()
    """Budgets that the campaign names outside of blocks. Every memory fits each of them."""

    @property
    def campaign(self) -> Campaign:
        assert self.launch.campaign is not None
        return self.launch.campaign

    @property
    def layouts(self) -> dict[str, Organization]:
        """The organizations of `memories`, by name."""
        return {memory.organization.name: memory.layout for memory in self.memories}

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Everything that determines the numbers of a counted campaign."""
        return (
            self.campaign,
            self.launch.model,
            self.launch.device,
            self.memories,
            self.budgets,
        )


def resolve(launch: Launch) -> Resolved:
    """Scale a launch, read its options, and check that the options of the campaign fit together.

    Raises:
        ConfigError: an option does not exist, or settings do not fit together.
    """
    launch = scaled(launch)
    campaign, scale = launch.campaign, launch.scale
    assert campaign is not None
    notes = [] if scale is None else [f"scale {scale.name}: budgets x {scale.budget_factor:g}"]
    catalog = _catalog(launch)
    names = {
        group: named if getattr(launch, group) is None else (getattr(launch, group).name,)
        for group, named in campaign.options.items()
    }
    memories, left_out = _memories(launch, catalog, names.get("organization", ()))
    budgets = tuple(catalog.option("budget", name) for name in names.get("budget", ()))
    for memory in memories:
        for budget in budgets:
            with refused(f"organization {memory.organization.name} under budget {budget.name}"):
                build_memory(memory, budget.bytes)
    if isinstance(campaign, LabCampaign):
        _require_branches(memories, campaign)
    if isinstance(campaign, FixedWorkCampaign):
        launch = priced(launch)
        _ = launch.device.known_step_time
    return Resolved(
        launch=launch,
        catalog=catalog,
        notes=(*notes, *left_out, *open_sizes(launch, [m.organization for m in memories])),
        memories=memories,
        budgets=budgets,
    )


def open_sizes(launch: Launch, used: Iterable[OrganizationConfig]) -> list[str]:
    """What organizations that are used took from the model because nobody chose it."""
    return [note for option in used if (note := option.open_size(launch.model)) is not None]


def _require_branches(memories: Sequence[MemoryConfig], campaign: Campaign) -> None:
    """Refuse organizations that cannot fork or draft, which is what a lab counts."""
    for memory in memories:
        if not memory.layout.allows_branches:
            raise ConfigError(
                f"organization {memory.organization.name} cannot run campaign {campaign.name}: its "
                "sequences cannot branch"
            )


def standing(campaign: str) -> Resolved:
    """A counted campaign with the settings of `conf/`, for callers without a command line.

    Raises:
        ConfigError: `conf/` is refused.
    """
    own, chosen = read_root("config")
    del own["hydra"]
    composed = {group: read_option(group, name) for group, name in chosen.items()}
    return resolve(Launch.parse(own | composed | read_option("campaign", campaign)))


def memory_for(organization: OrganizationConfig, model: ModelShape) -> MemoryConfig:
    """A memory without policies, whose organization can carry the model.

    Raises:
        ConfigError: it cannot; names both and the reason.
    """
    memory = MemoryConfig.without_policies(model=model, organization=organization)
    with refused(f"organization {organization.name} for model {model.name}"):
        _ = memory.layout
    return memory


def changed_pins(launch: Launch) -> list[str]:
    """Fields of pinned options that the command line changes, one line each."""
    lines = []
    for axis in _GROUP_AXES:
        option = getattr(launch, axis.name)
        if option is not None and option.name in options(axis.name):
            standing = read_option(axis.name, option.name)
            lines += [
                f"{axis.name}.{field} {value} in place of {standing.get(field)}"
                for field, value in changes(axis.name, option.model_dump(mode="json")).items()
            ]
    return lines


def _catalog(launch: Launch) -> Catalog:
    catalog: dict[str, dict[str, Any]] = {}
    for axis in _GROUP_AXES:
        group = axis.name
        catalog[group] = {
            name: _fitted(
                parse_union(
                    axis.options,
                    scaled_option(launch.scale, group, read_option(group, name)),
                    path=f"{group}.{name}",
                ),
                launch.model,
            )
            for name in options(group)
            if name not in _OPEN_ENDED
        }
        catalog[group] |= {
            name: parse_union(axis.options, own, path=f"{group}.{name}")
            for name, own in _own_options(launch).get(group, {}).items()
        }
        pinned = getattr(launch, group)
        if pinned is not None:
            catalog[group][pinned.name] = _fitted(pinned, launch.model)
    return Catalog(options=catalog)


def _own_options(launch: Launch) -> Mapping[str, Mapping[str, Any]]:
    """Options that only the campaign has."""
    campaign = launch.campaign
    return campaign.own_options if isinstance(campaign, ServingCampaign) else {}


def _fitted(option: Any, model: ModelShape) -> Any:
    """The option with what it leaves open to the model."""
    return option.fitted(model) if isinstance(option, OrganizationSettings) else option


def _memories(
    launch: Launch, catalog: Catalog, names: Sequence[str]
) -> tuple[tuple[MemoryConfig, ...], list[str]]:
    """Memories of the organizations that carry the model, and a note on each of the others.

    An organization that the command line pinned is refused instead.
    """
    if names and launch.organization is not None:
        pinned = catalog.option("organization", launch.organization.name)
        return (memory_for(pinned, launch.model),), []
    memories, notes = [], []
    for name in names:
        organization = catalog.option("organization", name)
        try:
            memories.append(memory_for(organization, launch.model))
        except ConfigError as error:
            notes.append(f"{error}; it is left out")
    if names and not memories:
        raise ConfigError("\n".join(notes))
    return tuple(memories), notes
