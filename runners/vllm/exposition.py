"""Reads the text of /metrics: samples with their labels, in Prometheus' exposition format."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line of the page."""

    labels: Mapping[str, str]
    value: float


class Exposition:
    """One page of metrics."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[tuple[str, str]]] = {}
        for match in _SAMPLE.finditer(text):
            name, labels, value = match.groups()
            self._lines.setdefault(name, []).append((labels or "", value))

    def samples(self, name: str) -> Iterator[Sample]:
        """Every sample of a metric; none where the page lacks it."""
        for labels, value in self._lines.get(name, []):
            yield Sample(
                labels={key: _unescaped(text) for key, text in _LABEL.findall(labels)},
                value=float(value),
            )

    def total(self, name: str) -> float | None:
        """Sum over all labels; None where the page lacks the metric."""
        values = [sample.value for sample in self.samples(name)]
        return sum(values) if values else None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)
