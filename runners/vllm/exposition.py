"""Reads the text of /metrics: samples with their labels, by the parser of Prometheus' client."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from runners.vllm.faults import RunFault


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line of the page."""

    labels: Mapping[str, str]
    value: float


class Exposition:
    """One page of metrics. Only the lines that are asked for are parsed: a page has hundreds, and
    the poller shares its thread with the clients whose times are measured."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def samples(self, name: str) -> Iterator[Sample]:
        """Every sample of a metric; none where the page lacks it.

        Raises:
            RunFault: a line is not in Prometheus' format.
        """
        starts = (f"{name}{{", f"{name} ")
        lines = [line for line in self._lines if line.startswith(starts)]
        try:
            for family in text_string_to_metric_families("\n".join([*lines, ""])):
                for sample in family.samples:
                    yield Sample(labels=dict(sample.labels), value=float(sample.value))
        except ValueError as error:
            raise RunFault(f"the server's metric {name} cannot be read: {error}") from None

    def total(self, name: str) -> float | None:
        """Sum over all labels; None where the page lacks the metric.

        Raises:
            RunFault: a line is not in Prometheus' format.
        """
        values = [sample.value for sample in self.samples(name)]
        return sum(values) if values else None
