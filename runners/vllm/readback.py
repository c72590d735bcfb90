"""Reads every swept setting back from the running engine; a mismatch is an error.

The engine reports what its scheduler and its worker really hold, as flat text
(`hsexp.engine.report`). What it must be follows from the cell by the code of the simulator.
"""

from collections.abc import Mapping
from typing import Any

from hsexp.engine.settings import label_text
from hsexp.plan.run import VllmRunConfig
from runners.vllm.command import settings_of
from runners.vllm.faults import KnobDiffers

Report = Mapping[str, str]


def require_knobs(config: VllmRunConfig, report: Report) -> None:
    """Compare an engine's report with the cell.

    Raises:
        KnobDiffers: names every knob with what was asked for and what runs.
    """
    wrong = [
        f"{name} is {report.get(name, 'not reported')}, asked for {value}"
        for name, value in expected(config).items()
        if report.get(name) != value
    ]
    if wrong:
        raise KnobDiffers("; ".join(wrong))


def expected(config: VllmRunConfig) -> dict[str, str]:
    """What the engine must report, by its own names."""
    memory = config.memory()
    pools = [pool.spec for pool in memory.cache.pools]
    values: dict[str, Any] = config.labels | {
        "budget_bytes": config.budget.bytes,
        "block_size": memory.block_size,
        "checkpoint_grid": memory.checkpoint_grid,
        "pools": ",".join(f"{pool.name}={pool.num_pages}" for pool in pools),
        "page_bytes": ",".join(f"{pool.name}={pool.page_bytes}" for pool in pools),
        "headroom_pages": ",".join(
            f"{pool.name}={pages}"
            for pool, pages in zip(pools, memory.admission.headroom_pages, strict=True)
        ),
        "cap": settings_of(config).admission.cap,
        "max_model_len": config.model.max_model_tokens,
        "max_num_batched_tokens": config.scheduler.token_budget,
    }
    return {name: label_text(value) for name, value in values.items()}


def pool_facts(report: Report) -> dict[str, Any]:
    """Pools as a simulated run reports them: pages and bytes of each, and the headroom."""
    pages, sizes, headroom = (
        dict(item.split("=") for item in report[name].split(","))
        for name in ("pools", "page_bytes", "headroom_pages")
    )
    return {
        "pools": {
            name: {"num_pages": int(count), "page_bytes": int(sizes[name])}
            for name, count in pages.items()
        },
        "headroom_pages": [int(count) for count in headroom.values()],
    }
