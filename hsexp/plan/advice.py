r"""Advice: what a campaign computes before its first run, and the blocks that follow from its runs.

    grid        organizations x headroom x policies, at the budget that is left beside the weights
      | run, rank
    headroom    the finalists, at headrooms between those of the grid
      | run, rank
    budget_x0.8, step_time_x2, rate_x1.26, ...    the finalists and the default, elsewhere
      | run
    analysis    says how the first arm differs from the default, and whether it stays the first

Each block follows from accepted runs alone, so that a launch that is repeated plans the same blocks
and goes on where it stopped.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hsexp.config.arm import Arm, Level
from hsexp.config.axes import ARM_AXES, AXES, NEUTRAL, SEEDS
from hsexp.config.base import ConfigError
from hsexp.config.campaigns import AdviceConfig, Block
from hsexp.config.catalog import read_option
from hsexp.config.launch import Launch
from hsexp.measure.metrics import metric_names
from hsexp.memory import MemoryConfig, build_memory
from hsexp.memory.config import BudgetConfig
from hsexp.plan.devices import GIB, budget_beside_weights, priced, smallest_budget
from hsexp.plan.resolve import Resolved, resolve
from hsexp.plan.scale import scaled
from hsexp.plan.target import Target
from hsexp.workload import read_trace
from hsexp.workload.traces.config import TraceWorkload

BESIDE_WEIGHTS = "beside_weights"
"""The budget that is computed from the device and the model."""

PRICED = "priced_device"
"""Priced retention with the step times of the device."""

CHOICES = tuple(axis for axis in ARM_AXES if axis.is_part or axis.name == "headroom")
"""Axes that a server chooses; their values make an arm."""

THROUGHPUT, TTFT = "throughput_tok_per_s", "ttft_p99_s"
"""What arms are ranked by, in this order."""

_RESOLUTION_S = 0.001
"""Latencies that differ by less are equal, whatever their ratio."""


# -- before the first run --------------------------------------------------------------------------


def prepared(launch: Launch) -> tuple[Launch, list[str]]:
    """The launch with the options that are computed for it, and notes on them.

    Raises:
        ConfigError: the target is refused, or there is no budget for state.
    """
    _ = target_of(launch.target)
    campaign, notes = launch.serving, []
    advice = _advice_of(launch)
    blocks = scaled(launch).serving.blocks
    own: dict[str, dict[str, dict[str, Any]]] = {}
    if launch.budget is None and any(BESIDE_WEIGHTS in block.budget for block in blocks.values()):
        left = budget_beside_weights(launch.device, launch.model, launch.gpu_gib)
        own["budget"] = {BESIDE_WEIGHTS: _budget(BESIDE_WEIGHTS, left.layer_bytes)}
        notes.append(f"budget {BESIDE_WEIGHTS}: {left}")
    elif launch.gpu_gib is not None:
        raise ConfigError(
            f"gpu_gib must be null beside a budget that is given, got {launch.gpu_gib:g}"
        )
    named = {axes["retention"] for block in blocks.values() for axes in block.combinations()}
    if PRICED in named:
        own["retention"] = {PRICED: _price(launch)}

    def with_options() -> Launch:
        extended = campaign.model_copy(update={"own_options": own})
        return launch.model_copy(update={"campaign": extended})

    nominal = _nominal(resolve(with_options()), blocks)
    own["budget"] = own.get("budget", {}) | {
        name: _budget(name, round(factor * nominal.bytes))
        for factor in advice.budget_factors
        for name in [_times(nominal.name, factor)]
    }
    return with_options(), notes


def target_of(text: str | None) -> Target | None:
    """The target of a launch, as it was typed.

    Raises:
        ConfigError: it is refused.
    """
    return None if text is None else Target.parse(text, known=metric_names())


def _advice_of(launch: Launch) -> AdviceConfig:
    advice = launch.serving.advice
    assert advice is not None
    return advice


def _budget(name: str, num_bytes: int) -> dict[str, Any]:
    return BudgetConfig(name=name, bytes=num_bytes).model_dump()


def _price(launch: Launch) -> dict[str, Any]:
    """Priced retention, where a step takes what it takes on the device."""
    steps = priced(launch).device.known_step_time
    return read_option("retention", "priced") | {
        "name": PRICED,
        "step_s": steps.shared_s,
        "prefill_token_s": steps.prefill_token_s,
    }


def _nominal(resolved: Resolved, blocks: Mapping[str, Block]) -> BudgetConfig:
    """The budget under which arms are ranked.

    Raises:
        ConfigError: the blocks have several.
    """
    pinned = resolved.launch.budget
    named = {name for block in blocks.values() for name in block.budget}
    names = named if pinned is None else {pinned.name}
    if len(names) != 1:
        raise ConfigError(f"advice needs one budget, got {', '.join(sorted(names))}")
    budget: BudgetConfig = resolved.catalog.option("budget", names.pop())
    return budget


# -- organizations that can be advised -------------------------------------------------------------


def feasible(resolved: Resolved, blocks: Mapping[str, Block]) -> tuple[dict[str, Block], list[str]]:
    """The blocks without organizations that cannot serve the requests, and a note on each of these.

    Raises:
        ConfigError: a request is longer than the model serves, or larger than the budget under
            every organization; names the nearest value that works.
    """
    longest = _longest(resolved.launch)
    budget = _nominal(resolved, blocks)
    misfits = {
        memory.organization.name: why
        for memory in resolved.memories
        if (why := _misfit(memory, budget.bytes, longest)) is not None
    }
    if len(misfits) == len(resolved.memories):
        raise _too_small(resolved, budget, longest, misfits)
    fitting = resolved.layouts.keys() - misfits.keys()
    kept = {name: _only(block, fitting) for name, block in blocks.items()}
    notes = [f"organization {name}: {why}; it is left out" for name, why in misfits.items()]
    return {name: block for name, block in kept.items() if block is not None}, notes


@dataclass(frozen=True, kw_only=True)
class _Longest:
    """The longest request of a trace, in tokens."""

    num_tokens: int
    path: str


def _longest(launch: Launch) -> _Longest | None:
    """None where the requests are not known before they are drawn.

    Raises:
        ConfigError: the model does not serve it.
    """
    law = {name: value for name, value in launch.workload.items() if name != "sharing"}
    if law.get("kind") != "trace":
        return None
    workload = TraceWorkload.parse(law, path="workload")
    lengths = [row.prompt_tokens + row.output_tokens for row in read_trace(workload).rows]
    most, longest = launch.model.max_model_tokens, max(lengths)
    if longest > most:
        count = sum(length > most for length in lengths)
        raise ConfigError(
            f"model.max_model_tokens {most} is less than {count} of {len(lengths)} requests of "
            f"{workload.path} have, of which the longest has {longest}: "
            f"model.max_model_tokens={longest} serves them"
        )
    return _Longest(num_tokens=longest, path=workload.path)


def _misfit(memory: MemoryConfig, nominal_bytes: int, longest: _Longest | None) -> str | None:
    """Why an organization cannot serve the longest request; None if it can."""
    try:
        built = build_memory(memory, nominal_bytes)
    except ValueError as error:
        return str(error)
    if longest is None:
        return None
    why = built.never_fits(longest.num_tokens - 1)
    return None if why is None else f"a request of {longest.num_tokens:,} tokens {why}"


def _too_small(
    resolved: Resolved,
    budget: BudgetConfig,
    longest: _Longest | None,
    misfits: Mapping[str, str],
) -> ConfigError:
    """The refusal of a budget that no organization can serve the requests with."""
    num_tokens = 2 if longest is None else longest.num_tokens
    needs = {
        memory.organization.name: smallest_budget(memory, num_tokens)
        for memory in resolved.memories
    }
    least = min(needs, key=lambda name: needs[name])
    hint = f"budget=bytes budget.bytes={needs[least]}"
    if budget.name == BESIDE_WEIGHTS:
        launch = resolved.launch
        share = budget_beside_weights(launch.device, launch.model, launch.gpu_gib)
        missing = (needs[least] - share.layer_bytes) * share.num_layers / share.utilization
        hint = f"gpu_gib={math.ceil(10 * (share.gpu_bytes + missing) / GIB) / 10:g}, or {hint}"
    return ConfigError(
        f"budget {budget.name} of {budget.bytes:,} bytes a layer is too small under every "
        f"organization ({'; '.join(f'{name}: {why}' for name, why in misfits.items())}); "
        f"{least} needs {needs[least]:,} bytes: {hint}"
    )


def _only(block: Block, organizations: Iterable[str]) -> Block | None:
    """The block with some organizations; None if it has none of them."""
    wanted = set(organizations)
    own = tuple(name for name in block.organization if name in wanted)
    arms = {
        name: arm
        for name, arm in block.arms.items()
        if (arm.organization in wanted if arm.organization is not None else own)
    }
    if not (arms if block.arms else own):
        return None
    kept = own or block.organization[:1]
    return block.model_copy(update={"organization": kept, "arms": arms})


# -- ranking ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An arm with the means of its runs."""

    arm: Arm
    cells: Mapping[int, str]
    """Cell of each seed."""
    metrics: Mapping[str, float | None]
    """Means over the seeds; None where a run lacks the metric."""

    def metric(self, name: str) -> float:
        """A metric that is known."""
        value = self.metrics[name]
        assert value is not None, f"{name} of {self.arm} is not known"
        return value

    @property
    def serves_all(self) -> bool:
        """Whether every request finished; arms that refuse some do less work than others."""
        left = (self.metrics.get(name) for name in ("num_refused", "num_unfinished"))
        return not any(left) and None not in (self.metrics.get(n) for n in (THROUGHPUT, TTFT))


def candidates(rows: Iterable[Mapping[Any, Any]]) -> list[Candidate]:
    """The arms of ledger rows that share everything else. An arm that lacks a seed is left out."""
    by_arm: dict[Arm, list[Mapping[Any, Any]]] = {}
    for row in rows:
        by_arm.setdefault(arm_of(row), []).append(row)
    most = max(map(len, by_arm.values()), default=0)
    names = metric_names()
    return [
        Candidate(
            arm=arm,
            cells={int(row["seed"]): str(row["cell_id"]) for row in runs},
            metrics={name: _mean([row.get(name) for row in runs]) for name in names},
        )
        for arm, runs in by_arm.items()
        if len(runs) == most
    ]


def arm_of(row: Mapping[Any, Any]) -> Arm:
    """What a server chooses, of a row of a ledger."""
    return Arm(**{axis.name: _level(row, axis.name) for axis in CHOICES})


def _level(row: Mapping[Any, Any], axis: str) -> Level:
    value = row.get(axis)
    known: Level = NEUTRAL[axis] if _is_unknown(value) else value  # type: ignore[assignment]
    return known


def _is_unknown(value: Any) -> bool:
    return value is None or value != value  # NaN differs from itself


def _mean(values: Sequence[Any]) -> float | None:
    if any(map(_is_unknown, values)):
        return None
    return float(sum(values) / len(values))


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How candidates are ordered: who keeps the target goes first, then throughput, TTFT p99 and
    simplicity. What is close counts as equal, so that the next of these decides."""

    default: Arm
    indifference: float
    """A fraction."""
    target: Target | None

    @classmethod
    def of(cls, advice: AdviceConfig, target: Target | None) -> "Ranking":
        return cls(
            default=_whole(advice.default),
            indifference=advice.indifference_percent / 100.0,
            target=target,
        )

    def order(self, found: Iterable[Candidate]) -> list[Candidate]:
        """The best first; candidates that refused requests are left out."""
        left = [each for each in found if each.serves_all and self._shortfall(each) is not None]
        ordered: list[Candidate] = []
        while left:
            best = self._best(left)
            ordered.append(best)
            left.remove(best)
        return ordered

    def is_level(self, candidate: Candidate, best: Candidate) -> bool:
        """Whether a candidate is as good as the best one, but for what counts as equal."""
        least = (1.0 - self.indifference) * best.metric(THROUGHPUT)
        most = (1.0 + self.indifference) * best.metric(TTFT) + _RESOLUTION_S
        return candidate.metric(THROUGHPUT) >= least and candidate.metric(TTFT) <= most

    def keeps_target(self, candidate: Candidate) -> bool:
        short = self._shortfall(candidate)
        return short is not None and short <= 0.0

    def standard(self, found: Iterable[Candidate]) -> Candidate:
        """The default, or the candidate that is nearest to it."""
        return min(found, key=lambda each: self._distance(each.arm))

    def _shortfall(self, candidate: Candidate) -> float | None:
        """How far the target is missed; None where its metric is not known."""
        if self.target is None:
            return 0.0
        value = candidate.metrics.get(self.target.metric)
        return None if value is None else self.target.shortfall(value)

    def _best(self, left: Sequence[Candidate]) -> Candidate:
        keeping = [each for each in left if self.keeps_target(each)]
        if not keeping:
            return min(left, key=lambda each: self._shortfall(each) or 0.0)
        most = max(each.metric(THROUGHPUT) for each in keeping)
        fast = [
            each for each in keeping if each.metric(THROUGHPUT) >= (1.0 - self.indifference) * most
        ]
        least = min(each.metric(TTFT) for each in fast)
        prompt = [
            each
            for each in fast
            if each.metric(TTFT) <= (1.0 + self.indifference) * least + _RESOLUTION_S
        ]
        return min(prompt, key=lambda each: (self._distance(each.arm), str(each.arm)))

    def _distance(self, arm: Arm) -> tuple[int, float]:
        """Number of settings that differ from the default, then the headroom."""
        other = sum(getattr(arm, axis.name) != getattr(self.default, axis.name) for axis in CHOICES)
        return other, float(arm.headroom or 0.0)


def _whole(arm: Arm) -> Arm:
    """An arm with every choice, the neutral one where it names none."""
    return Arm(**{axis.name: NEUTRAL[axis.name] for axis in CHOICES if axis.neutral} | arm.axes)


# -- after the first runs --------------------------------------------------------------------------

FollowUp = Callable[[Launch, Sequence[Candidate]], dict[str, Block]]
"""Blocks that follow from the candidates of the blocks before them; none if nothing is to be run.
"""


def headrooms_between(launch: Launch, found: Sequence[Candidate]) -> dict[str, Block]:
    """The finalists at the headrooms halfway between their best one and its neighbours."""
    ranking = Ranking.of(_advice_of(launch), target_of(launch.target))
    arms: list[Arm] = []
    for finalist in _finalists(launch, ranking.order(found), by_headroom=False):
        tried = sorted(
            float(each.arm.headroom or 0.0) for each in found if _twins(each.arm, finalist.arm)
        )
        best = float(finalist.arm.headroom or 0.0)
        arms += [
            finalist.arm.model_copy(update={"headroom": round((low + high) / 2.0, 4)})
            for low, high in pairwise(tried)
            if best in (low, high)
        ]
    return {} if not arms else {"headroom": _block(launch, arms)}


def sensitivities(launch: Launch, found: Sequence[Candidate]) -> dict[str, Block]:
    """The finalists and the default under other budgets and step times."""
    advice = _advice_of(launch)
    ranking = Ranking.of(advice, target_of(launch.target))
    order = ranking.order(found)
    if not order:
        return {}
    arms = _with_default(launch, ranking, order)
    resolved = resolve(launch)
    nominal = _nominal(resolved, resolved.launch.serving.blocks)
    longest = _longest(resolved.launch)
    memories = {memory.organization.name: memory for memory in resolved.memories}
    blocks: dict[str, Block] = {}
    for factor in advice.budget_factors:
        budget = _times(nominal.name, factor)
        num_bytes = resolved.catalog.option("budget", budget).bytes
        fitting = [
            arm
            for arm in arms
            if _misfit(memories[str(arm.organization)], num_bytes, longest) is None
        ]
        if fitting:
            blocks[_times("budget", factor)] = _block(launch, fitting, budget=(budget,))
    if launch.step_time_factor is None:
        for factor in advice.step_time_factors:
            name = _times("step_time", factor)
            blocks[name] = _block(launch, arms, step_time_factor=(factor,))
    return blocks


def rates(launch: Launch, found: Sequence[Candidate]) -> dict[str, Block]:
    """The finalists and the default at other rates, where there is a target and a rate is drawn."""
    ranking = Ranking.of(_advice_of(launch), target_of(launch.target))
    (rate,) = _place(launch)["rate_per_s"]
    order = ranking.order(found)
    if ranking.target is None or rate is None or not order:
        return {}
    arms = _with_default(launch, ranking, order)
    return {
        _times("rate", factor): _block(launch, arms, rate_per_s=(round(factor * rate, 6),))
        for factor in _advice_of(launch).rate_factors
    }


FOLLOW_UPS: tuple[FollowUp, ...] = (headrooms_between, sensitivities, rates)
"""In the order in which they run."""


def _finalists(launch: Launch, order: Sequence[Candidate], *, by_headroom: bool) -> list[Candidate]:
    """The first candidates of a ranking.

    Args:
        by_headroom: arms that differ in nothing but their headroom count as several.
    """
    chosen: list[Candidate] = []
    for each in order:
        if by_headroom or not any(_twins(each.arm, other.arm) for other in chosen):
            chosen.append(each)
    return chosen[: _advice_of(launch).finalists]


def _with_default(launch: Launch, ranking: Ranking, order: Sequence[Candidate]) -> list[Arm]:
    """The finalists of a ranking, and its default."""
    finalists = _finalists(launch, order, by_headroom=True)
    return list(dict.fromkeys(each.arm for each in (*finalists, ranking.standard(order))))


def _twins(one: Arm, other: Arm) -> bool:
    """Whether two arms differ in nothing but their headroom."""
    return one.model_copy(update={"headroom": None}) == other.model_copy(update={"headroom": None})


def _times(name: str, factor: float) -> str:
    return f"{name}_x{factor:g}"


def _block(launch: Launch, arms: Iterable[Arm], **axes: tuple[Level, ...]) -> Block:
    """A block of these arms, at the place of the campaign's first block, with other axes."""
    first = next(iter(scaled(launch).serving.blocks.values()))
    named = {_name_of(arm): arm.axes for arm in arms}
    return Block.parse(
        first.model_dump() | _place(launch) | dict(axes) | {"arms": named}, path="campaign.blocks"
    )


def _place(launch: Launch) -> dict[str, tuple[Any, ...]]:
    """The first value of each axis in the campaign's first block, and all its seeds; pins go
    before."""
    resolved = scaled(launch)
    first = next(iter(resolved.serving.blocks.values()))
    place: dict[str, tuple[Any, ...]] = {}
    for axis in AXES:
        pinned = axis.pinned(resolved)
        values = first.values(axis) if pinned is None else pinned
        place[axis.name] = values if axis is SEEDS else values[:1]
    return place


def _name_of(arm: Arm) -> str:
    """The values that are not neutral: `s2_0.19_k2_hit_first`."""
    values = (
        getattr(arm, axis.name)
        for axis in CHOICES
        if axis.neutral is None or getattr(arm, axis.name) not in axis.neutral
    )
    return "_".join(map(str, values))


_ELSEWHERE = re.compile(r"(budget|step_time|rate)_x([0-9.e+-]+)")


def elsewhere(block: str) -> str | None:
    """What differs in a block of `sensitivities` or `rates`, in words; None for any other block."""
    found = _ELSEWHERE.fullmatch(block)
    if found is None:
        return None
    what = "step times" if found[1] == "step_time" else found[1]
    return f"{what} x {found[2]}"
