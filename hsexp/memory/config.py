"""Settings of a memory: the model, its organization and the policies, for every engine alike."""

from typing import Annotated, Any, Self

from pydantic import Field, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.memory.chunking import Chunking, chunking
from hsexp.memory.geometry import AnyModel, ModelShape, SizedModel
from hsexp.memory.organizations import Organization, OrganizationConfig, create
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.eviction import PAPER, EvictionConfig
from hsexp.memory.policies.leaves import NO_LEAVES, LeavesConfig
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.placement import CHUNK_ENDS, PlacementConfig
from hsexp.memory.policies.reservation import FULL_PROMPT, ReservationConfig
from hsexp.memory.policies.retention import DemandedRetention, RetentionConfig
from hsexp.memory.policies.states import PER_BOUNDARY, StatesConfig
from hsexp.memory.policies.waiting import FIRST_COME, WaitingConfig


class BudgetConfig(Config):
    """Nominal bytes for all state of one layer (Section 4.1, Table B-2)."""

    name: Name
    bytes: PositiveInt


class MemoryConfig(Config):
    """Settings of one memory, except its budget.

    The configuration of a run and the settings of an engine inherit from it, and
    `hsexp.memory.build_memory` takes it: a policy that is a field here reaches all of them.
    """

    model: AnyModel
    organization: OrganizationConfig
    admission: AdmissionConfig
    retention: RetentionConfig
    pinning: PinningConfig
    eviction: Annotated[EvictionConfig, Field(exclude_if=lambda value: value == PAPER)] = PAPER
    """A cell's id contains it only where it is another than the paper's."""
    waiting: Annotated[WaitingConfig, Field(exclude_if=lambda value: value == FIRST_COME)] = (
        FIRST_COME
    )
    """Used by the scheduler; a cell's id contains it only where it is another than vLLM's."""
    placement: Annotated[PlacementConfig, Field(exclude_if=lambda value: value == CHUNK_ENDS)] = (
        CHUNK_ENDS
    )
    """A cell's id contains it only where it is another than that of the paper's campaigns."""
    reservation: Annotated[
        ReservationConfig, Field(exclude_if=lambda value: value == FULL_PROMPT)
    ] = FULL_PROMPT
    """A cell's id contains it only where it is another than the paper's."""
    states: Annotated[StatesConfig, Field(exclude_if=lambda value: value == PER_BOUNDARY)] = (
        PER_BOUNDARY
    )
    """A cell's id contains it only where it is another than the paper's."""
    leaves: Annotated[LeavesConfig, Field(exclude_if=lambda value: value == NO_LEAVES)] = NO_LEAVES
    """A cell's id contains it only where it is another than the paper's."""
    exact: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Continue with the bits of an isolated recomputation, whatever else runs: canonical chunks,
    and on real vLLM every request alone in the model (docs/continuation.md). A cell's id contains
    it only where it is true."""

    @model_validator(mode="after")
    def _states_carry_the_rest(self) -> Self:
        self.require_states(branches=False)
        return self

    def require_states(self, *, branches: bool) -> None:
        """Refuse a rule of states that cannot carry the other policies.

        Args:
            branches: whether running requests fork, leave leaves, or draft tokens.

        Raises:
            ValueError: names the rule, and what it cannot carry.
        """
        why = self.states.refusal(retention=self.retention.keeps_states, branches=branches)
        if why is not None:
            raise ValueError(f"states {self.states.name} cannot be combined: {why}")

    @model_validator(mode="after")
    def _leaves_can_be_kept(self) -> Self:
        organization = self.organization
        why = self.leaves.refusal(allows_branches=organization.allows_branches, exact=self.exact)
        if why is not None:
            raise ValueError(
                f"leaves {self.leaves.name} cannot be combined with organization "
                f"{organization.name}{' and exact' if self.exact else ''}: {why}"
            )
        return self

    @model_validator(mode="after")
    def _price_needs_ranks(self) -> Self:
        if self.retention.needs_ranks and not self.eviction.knows_prefixes:
            raise ValueError(
                f"retention {self.retention.name} needs an order of eviction that ranks restart "
                f"points, such as restart_point, got {self.eviction.name}"
            )
        return self

    @classmethod
    def without_policies(
        cls, *, model: ModelShape, organization: OrganizationConfig, cap: int = 1, **others: Any
    ) -> Self:
        """A memory without headroom, retention and pinning.

        Args:
            cap: most running requests; only a scheduler reads it.
            others: fields of a subclass.
        """
        return cls(
            model=model,
            organization=organization,
            admission=AdmissionConfig(headroom=0.0, cap=cap),
            retention=DemandedRetention(name="off", requesters=None),
            pinning=PinningConfig(name="off", requesters=None, protected_fraction=0.0),
            **others,
        )

    @property
    def memory_settings(self) -> dict[str, Any]:
        """The fields of this class, without those of a subclass."""
        return {name: getattr(self, name) for name in MemoryConfig.model_fields}

    @property
    def layout(self) -> Organization:
        """The organization, sized for the model.

        Raises:
            ValueError: the sizes do not fit together, or D0 has no split for the model.
        """
        return create(self.organization, self.model)

    @property
    def paged(self) -> bool:
        """Whether recurrent kernels read a state page by page (Appendix B.9)."""
        return self.organization.pages_states

    def require_kernels(self) -> None:
        """Refuse an organization whose states a real engine cannot read.

        Raises:
            ValueError: names the organization, and what serves the model.
        """
        model = self.model
        if isinstance(model, SizedModel) and self.paged:
            raise ValueError(
                f"organization {self.organization.name} keeps a state in several pages, and a real "
                f"engine has no kernels for that with {model.family}: s0 and d0 serve {model.name}"
            )

    @property
    def chunking(self) -> Chunking:
        layout = self.layout
        return chunking(
            block_size=layout.block_size,
            checkpoint_grid=layout.checkpoint_grid,
            exact=self.exact,
        )

    @property
    def labels(self) -> dict[str, Any]:
        """Settings that campaigns vary, as flat names: `headroom`, `pinning_requesters`, ..."""
        labels: dict[str, Any] = {
            "organization": self.organization.name,
            "kind": self.organization.kind,
            "model": self.model.name,
            "exact": self.exact,
        }
        for field in MemoryConfig.model_fields:
            if field in ("model", "organization", "exact"):
                continue
            for name, value in getattr(self, field):
                if name == "name":
                    labels[field] = value
                else:
                    labels[name if field == "admission" else f"{field}_{name}"] = value
        return labels
