"""What /metrics shows of an organization: pages, slabs, losses, refusals, stranded bytes.

The engine core takes the statistics (`hsexp.engine.monitor`); this publishes them beside vLLM's.
"""

from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats

from hsexp.engine.monitor import COUNTERS, SUMS, PoolState
from hsexp.engine.report import kept_reports

PREFIX = "hsexp:"

_PAGES = {
    "free": "Pages that nothing references, cached or not.",
    "cached": "Pages that nothing references and a cache key still finds; counted once a second.",
    "referenced": "Pages that a request or a pin references.",
}
_GAUGES = {
    "slabs": "Pages that hold convolution states (S2).",
    "slab_slots": "Convolution slots of all slabs.",
    "used_slab_slots": "Convolution slots that hold a state.",
    "pinned": "Checkpoints that a pin holds.",
    "stranded_bytes": "Free bytes, of one layer, of one pool while another one is exhausted (D0).",
}


class MemoryLogger(AggregateStatLoggerBase):
    """Publishes the states of all engine cores of a front end beside vLLM's own metrics."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        _unregister()
        self._config = vllm_config
        self._model = str(vllm_config.model_config.served_model_name)
        self._pages = {
            state: _gauge(f"{state}_pages", text, "pool") for state, text in _PAGES.items()
        }
        self._gauges = {name: _gauge(name, text) for name, text in _GAUGES.items()}
        self._counters = {
            name: Counter(
                name=f"{PREFIX}{name}",
                documentation=text,
                labelnames=("model_name", "engine"),
            )
            for name, text in (COUNTERS | SUMS).items()
        }
        for index in engine_indexes:  # an event that never happened is a zero, not missing
            for name in COUNTERS:
                self._counters[name].labels(self._model, str(index))

    def log_engine_initialized(self) -> None:
        """Publish the report as a gauge of 1 whose labels are all knobs; and the empty pools."""
        reports = kept_reports(self._config)
        if not reports:
            return
        names = tuple(next(iter(reports.values())).labels())
        info = _gauge("engine_info", "The organization that runs, and its knobs.", *names)
        for index, report in reports.items():
            labels = (self._model, str(index))
            info.labels(*labels, *report.labels().values()).set(1)
            for pool in report.pools:
                empty = PoolState(name=pool.name, free=pool.num_pages - 1, cached=0, referenced=0)
                self._set_pool(empty, labels)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        state = getattr(scheduler_stats, "hsexp", None)
        if state is None:
            return
        labels = (self._model, str(engine_idx))
        for pool in state.pools:
            self._set_pool(pool, labels)
        for name, gauge in self._gauges.items():
            value = getattr(state, name)
            if value is not None:
                gauge.labels(*labels).set(value)
        for name, increment in state.increments.items():
            self._counters[name].labels(*labels).inc(increment)

    def _set_pool(self, pool: PoolState, labels: tuple[str, str]) -> None:
        for name, gauge in self._pages.items():
            gauge.labels(*labels, pool.name).set(getattr(pool, name))


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(
        name=f"{PREFIX}{name}",
        documentation=text,
        labelnames=("model_name", "engine", *labels),
        multiprocess_mode="mostrecent",
    )


def _unregister() -> None:
    """Make room for a second engine in one process, which registers the same names again."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(PREFIX):
            REGISTRY.unregister(collector)
