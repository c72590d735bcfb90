"""The contract: what all runs of one ledger share, and what every name in their rows means.

It is plain data in four parts::

    campaign: q6, engine: sim, model: {...}, ...    shared: the first launch fixes it
    options: {organization: {s2: {...}}}            what a value of an axis means
    blocks: {main: {workload: {...}}}               what a block of the campaign means
    words: {device: {description: ...}}             free text; never compared

One entry of `options` or `blocks` is a *term*. A contract has the terms that its cells use and no
others. A ledger takes new terms at any time. It refuses another meaning of a term that has runs,
so that no name in it has two meanings; a term without runs may still change.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from hsexp.plan.cells import canonical_json

Term = tuple[str, str, str]
"""("options", "organization", "s2") or ("blocks", "main", "workload")."""

OPTIONS, BLOCKS, WORDS = "options", "blocks", "words"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """A contract, split into its parts."""

    shared: Mapping[str, Any]
    terms: Mapping[Term, Any]
    words: Mapping[str, Any]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        plain = plain_data(data)
        return cls(
            words=plain.pop(WORDS, {}),
            terms={
                (section, first, second): meaning
                for section in (OPTIONS, BLOCKS)
                for first, members in plain.pop(section, {}).items()
                for second, meaning in members.items()
            },
            shared=plain,
        )

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = dict(self.shared)
        for (section, first, second), meaning in self.terms.items():
            data.setdefault(section, {}).setdefault(first, {})[second] = meaning
        return data | ({WORDS: self.words} if self.words else {})

    def terms_of(self, row: Mapping[str, Any]) -> set[Term]:
        """The terms that a row's axes and block name.

        An option whose meaning depends on two axes is named by both: `organization/dtype` has
        `s2/float32`.
        """
        return {term for term in self.terms if _names(term, row)}

    def only(self, terms: Iterable[Term]) -> Self:
        kept = set(terms)
        return replace(self, terms={term: self.terms[term] for term in self.terms if term in kept})

    def extended(self, news: "Contract") -> Self:
        """This contract with further terms; where both have a term, that of `news` wins."""
        return replace(self, terms={**self.terms, **news.terms}, words=self.words or news.words)

    def news(self, run: "Contract") -> "Contract":
        """The terms of a run's contract that are new here or changed."""
        return replace(
            run,
            shared={},
            words={} if self.words else run.words,
            terms={
                term: meaning
                for term, meaning in run.terms.items()
                if term not in self.terms or differences(ledger=self.terms[term], run=meaning)
            },
        )

    def conflicts(self, run: "Contract", *, fixed: Iterable[Term]) -> list[str]:
        """One line a field in which a run differs from what is shared or from a fixed term."""
        found = differences(ledger=self.shared, run=run.shared)
        for term in sorted(self.terms.keys() & run.terms.keys() & set(fixed)):
            found += differences(ledger=self.terms[term], run=run.terms[term], path=_spelled(term))
        return found


def plain_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data after a round trip through JSON: tuples are lists, keys are sorted."""
    plain: dict[str, Any] = json.loads(canonical_json(data))
    return plain


def differences(*, ledger: Any, run: Any, path: str = "") -> list[str]:
    """One line a differing field: `workload.num_requests: ledger has 300, this run has 100`."""
    ours, theirs = dict(_leaves(_plain(ledger), path)), dict(_leaves(_plain(run), path))
    return [
        f"{field}: ledger has {ours.get(field, 'nothing')}, "
        f"this run has {theirs.get(field, 'nothing')}"
        for field in sorted(ours.keys() | theirs.keys())
        if ours.get(field) != theirs.get(field)
    ]


def _plain(data: Any) -> Any:
    return json.loads(canonical_json(data), parse_float=_number)


def _number(text: str) -> float | int:
    """Parse a float; 1.0 becomes 1, so that both compare equal as text."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _leaves(data: Any, path: str) -> Iterator[tuple[str, str]]:
    """Dotted names and the JSON of their values; a list is one value."""
    if isinstance(data, Mapping) and (data or not path):
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path, json.dumps(data, ensure_ascii=False)


def _names(term: Term, row: Mapping[str, Any]) -> bool:
    """Whether a row's axes or its block name the term."""
    section, first, second = term
    if section == BLOCKS:
        return bool(row["block"] == first)
    axes = row["axes"]
    return "/".join(str(axes.get(axis)) for axis in first.split("/")) == second


def _spelled(term: Term) -> str:
    section, first, second = term
    return f"{first}.{second}" if section == OPTIONS else f"{section}.{first}.{second}"
