"""Tables of fixed work: width and mixing by the device's step-time model, beside the paper's words.

They need no run: conf/campaign lists the shapes, and `hsexp.labs.fixed_work` adds up their steps.
"""

import pandas as pd

from analysis.published import published_value
from analysis.runs import Origin
from analysis.tables.registry import counted
from analysis.tables.table import Column, Table
from hsexp.config.campaigns import FixedWorkCampaign
from hsexp.labs.fixed_work import Shape, mixing, step_clock, width
from hsexp.plan.resolve import Resolved

_MS = 1e3


@counted("fixed-work-width", campaign="fixed_work", lacks="the times of its steps")
def fixed_work_width(resolved: Resolved) -> Table:
    """All decodes in one step, against fewer decodes in several steps (experiment 9a)."""
    campaign = _campaign(resolved)
    pair = width(step_clock(resolved.launch.device), campaign)
    return Table(
        name="fixed-work-width",
        title=f"{campaign.num_wide} decodes in one step or in several",
        rows=pd.DataFrame([_row(pair.joined), _row(pair.split)]),
        views=(
            (
                Column(heading="steps", templates=("{steps}",)),
                Column(heading="total ms", templates=("{total_ms:.3f}",)),
                Column(heading="ms a token", templates=("{token_ms:.3f}",)),
            ),
        ),
        origin=_origin(resolved),
        notes=(
            f"One step of {campaign.num_wide} takes {-pair.saving_s * _MS:.3f} ms less. The paper "
            "measured a lower cost a token for the wider step too, and prints no number.",
        ),
    )


@counted("fixed-work-mixing", campaign="fixed_work", lacks="the times of its steps")
def fixed_work_mixing(resolved: Resolved) -> Table:
    """An input chunk in one step with the decodes, against a step before them (experiment 9b)."""
    campaign = _campaign(resolved)
    pairs = mixing(step_clock(resolved.launch.device), campaign)
    rows = [
        {
            "steps": str(pairs[chunk.prefill_tokens].split),
            "mixed_ms": pairs[chunk.prefill_tokens].joined.total_s * _MS,
            "separated_ms": pairs[chunk.prefill_tokens].split.total_s * _MS,
            "saving_ms": pairs[chunk.prefill_tokens].saving_s * _MS,
            "published_saving_ms": published_value("text", "C.1", chunk.published),
        }
        for chunk in campaign.chunks
    ]
    return Table(
        name="fixed-work-mixing",
        title=f"{campaign.num_mixed_decodes} decodes and one input chunk, mixed or separated",
        rows=pd.DataFrame(rows),
        views=(
            (
                Column(heading="separated steps", templates=("{steps}",)),
                Column(heading="mixed ms", templates=("{mixed_ms:.3f}",)),
                Column(heading="separated ms", templates=("{separated_ms:.3f}",)),
                Column(heading="separated saves ms", templates=("{saving_ms:+.3f}",)),
                Column(heading="paper, measured", templates=("about {published_saving_ms:+g}",)),
            ),
        ),
        origin=_origin(resolved),
        notes=(
            "The model charges every step its base, so a separated step costs one base more. It "
            "cannot show what the paper measured: separated decodes replay a recorded graph, mixed "
            "ones do not. The model does not depend on the context or on the organization either.",
        ),
    )


def _row(shape: Shape) -> dict[str, str | float]:
    return {
        "steps": str(shape),
        "total_ms": shape.total_s * _MS,
        "token_ms": shape.token_s * _MS,
    }


def _origin(resolved: Resolved) -> Origin:
    device = resolved.launch.device
    model = device.known_step_time.name
    modelled = "modelled, prior" if device.is_prior else "modelled"
    return Origin(
        data_kind=f"{modelled} (device {device.name}, time model {model}), not measured",
        device=device.name,
        time_model=model,
    )


def _campaign(resolved: Resolved) -> FixedWorkCampaign:
    assert isinstance(resolved.campaign, FixedWorkCampaign)
    return resolved.campaign
