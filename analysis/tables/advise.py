"""Advice in tables: what it depends on, and the arms with the advised one first."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis.advice import Advice, Condition, Spread, change_percent
from analysis.intervals import Interval
from analysis.ledgers import Ledgers
from analysis.serve_line import ServeLine, serve_line
from analysis.tables.cells import text_column
from analysis.tables.registry import table
from analysis.tables.table import Column, Table
from hsexp.plan.advice import THROUGHPUT, TTFT, Candidate

_LACKS = "any such experiment"

_SHOWN = ("e2e_p99_s", "tpot_p99_s", "num_preemptions")
"""Metrics beside the two that arms are ranked by."""


@table("advise-sensitivity", lacks=_LACKS)
def sensitivity(ledgers: Ledgers) -> Table:
    """The finalists and the default where the budget or the step times are not as assumed."""
    advice = Advice(ledgers)
    rows = [_condition_row(advice, each) for each in advice.conditions]
    return Table(
        name="advise-sensitivity",
        title="What the advice depends on",
        rows=pd.DataFrame(rows, columns=list(_CONDITION_COLUMNS)),
        views=(
            (
                text_column("where", "where"),
                text_column("first there", "first"),
                Column(
                    group="tok/s", heading="advised", templates=("{throughput_tok_per_s:,.1f}",)
                ),
                Column(
                    group="tok/s",
                    heading="over the default",
                    templates=("{throughput_change_percent:+.1f} %",),
                ),
                Column(group="TTFT p99, s", heading="advised", templates=("{ttft_p99_s:.2f}",)),
                Column(
                    group="TTFT p99, s",
                    heading="over the default",
                    templates=("{ttft_change_percent:+.1f} %",),
                ),
                text_column("advice", "advice"),
            ),
        )
        if rows
        else (),
        origin=advice.origin,
        notes=(
            f"Advised: {advice.describe(advice.advised.arm)}. Default: "
            f"{advice.describe(advice.default.arm)}. Only the finalists and the default run here.",
        )
        if rows
        else ("Runs elsewhere are made in the simulator.",),
    )


_CONDITION_COLUMNS = (
    "where",
    "first",
    THROUGHPUT,
    "throughput_change_percent",
    TTFT,
    "ttft_change_percent",
    "advice",
)


def _condition_row(advice: Advice, condition: Condition) -> dict[str, Any]:
    advised, default = condition.advised, condition.default
    return {
        "where": condition.words,
        "first": advice.describe(condition.order[0].arm) if condition.order else None,
        THROUGHPUT: advised and advised.metric(THROUGHPUT),
        "throughput_change_percent": change_percent(advised, default, THROUGHPUT),
        TTFT: advised and advised.metric(TTFT),
        "ttft_change_percent": change_percent(advised, default, TTFT),
        "advice": "stands" if condition.stands else "changes",
    }


@table("advise", lacks=_LACKS)
def arms(ledgers: Ledgers) -> Table:
    """Each organization and policy at its best headroom; the two sentences and the command."""
    advice = Advice(ledgers)
    shown = _best_headrooms(advice)
    spreads = {each.arm: advice.spread(each) for each in shown}
    rows = [
        _arm_row(advice, rank, each, spreads[each.arm]) for rank, each in enumerate(shown, start=1)
    ]
    line = serve_line(
        advice.ledger.contract,
        advice.advised.arm,
        budget_bytes=advice.budget_bytes,
        cap=int(advice.place["cap"]),
    )
    sentences = _sentences(advice, spreads[advice.advised.arm])
    return Table(
        name="advise",
        title=f"Arms for {advice.model}, the advised one first",
        rows=pd.DataFrame(rows),
        views=(_COLUMNS,),
        origin=advice.origin,
        notes=_notes(advice, len(shown)),
        closing=(" ".join(sentences), _starting(line)),
        summary=_summary(advice, sentences, line, rows),
    )


def _with_interval(heading: str, metric: str, low: str, high: str, form: str) -> Column:
    return Column(
        heading=heading,
        templates=(
            f"{{{metric}:{form}}} ({{{low}:{form}}} to {{{high}:{form}}})",
            f"{{{metric}:{form}}}",
        ),
    )


_COLUMNS = (
    Column(heading="", templates=("{rank:d}",)),
    text_column("organization", "organization"),
    Column(heading="headroom", templates=("{headroom:g}",)),
    text_column("policies", "policies"),
    _with_interval("tok/s", THROUGHPUT, "throughput_low", "throughput_high", ",.1f"),
    _with_interval(
        "tok/s over the default, %",
        "throughput_change_percent",
        "throughput_change_low_percent",
        "throughput_change_high_percent",
        "+.1f",
    ),
    _with_interval("TTFT p99, s", TTFT, "ttft_low", "ttft_high", ".2f"),
    _with_interval(
        "TTFT over the default, %",
        "ttft_change_percent",
        "ttft_change_low_percent",
        "ttft_change_high_percent",
        "+.0f",
    ),
    Column(heading="E2E p99, s", templates=("{e2e_p99_s:.2f}",)),
    Column(heading="TPOT p99, ms", templates=("{tpot_p99_ms:.1f}",)),
    Column(heading="preempted", templates=("{num_preemptions:,.0f}",)),
)


def _best_headrooms(advice: Advice) -> list[Candidate]:
    """The first of the arms that differ in nothing but their headroom, and the default. Of arms
    with one organization and the same numbers it is the simplest."""
    shown: list[Candidate] = []
    seen: set[tuple[object, ...]] = set()
    for each in advice.order:
        organization = each.arm.organization_label
        keys = {
            (organization, *advice.settings(each.arm, headroom=False)),
            (organization, *(each.metric(name) for name in (THROUGHPUT, TTFT, "e2e_p99_s"))),
        }
        if not keys & seen or each.arm == advice.default.arm:
            shown.append(each)
        seen |= keys
    return shown


def _arm_row(advice: Advice, rank: int, candidate: Candidate, spread: Spread) -> dict[str, Any]:
    tpot_s = candidate.metrics["tpot_p99_s"]
    return {
        "rank": rank,
        "organization": candidate.arm.organization_label,
        "headroom": candidate.arm.headroom,
        "policies": ", ".join(advice.settings(candidate.arm, headroom=False)) or "none",
        THROUGHPUT: candidate.metric(THROUGHPUT),
        **_ends("throughput", spread.throughput),
        "throughput_change_percent": _change(advice, candidate, THROUGHPUT),
        **_ends("throughput_change", spread.throughput_change, "_percent"),
        TTFT: candidate.metric(TTFT),
        **_ends("ttft", spread.ttft),
        "ttft_change_percent": _change(advice, candidate, TTFT),
        **_ends("ttft_change", spread.ttft_change, "_percent"),
        **{name: candidate.metrics.get(name) for name in _SHOWN},
        "tpot_p99_ms": None if tpot_s is None else 1000.0 * tpot_s,
        "is_default": candidate.arm == advice.default.arm,
    }


def _change(advice: Advice, candidate: Candidate, metric: str) -> float | None:
    if candidate.arm == advice.default.arm:
        return None
    return change_percent(candidate, advice.default, metric)


def _ends(name: str, interval: Interval | None, unit: str = "") -> dict[str, float | None]:
    return {
        f"{name}_low{unit}": None if interval is None else interval.low,
        f"{name}_high{unit}": None if interval is None else interval.high,
    }


# -- in words ------------------------------------------------------------------------------------


def _sentences(advice: Advice, spread: Spread) -> tuple[str, str]:
    """What to serve with, and how far that can be trusted."""
    return _first_sentence(advice, spread), _second_sentence(advice)


def _first_sentence(advice: Advice, spread: Spread) -> str:
    advised, default = advice.advised, advice.default
    device = advice.origin.device
    rate = advice.highest_rate
    kept = f", which keeps {advice.target}" if advice.target is not None else ""
    kept += f" up to {rate:g} requests/s" if kept and rate is not None else ""
    head = f"Serve {advice.model} on {device} with {advice.describe(advised.arm)}{kept}: "
    numbers = (
        f"{advised.metric(THROUGHPUT):,.1f} output tokens/s and a TTFT p99 of "
        f"{advised.metric(TTFT):.2f} s"
    )
    if advised.arm == default.arm:
        gain = f"{100.0 * advice.ranking.indifference:g} %"
        return (
            f"{head}{numbers}; that is the default, and none of the {len(advice.order)} arms is "
            f"better by more than {gain} and beyond its interval."
        )
    return (
        f"{head}{numbers}, {_changed(advice, THROUGHPUT, spread.throughput_change)} and "
        f"{_changed(advice, TTFT, spread.ttft_change)} against {advice.describe(default.arm)}."
    )


def _changed(advice: Advice, metric: str, interval: Interval | None) -> str:
    change = _change(advice, advice.advised, metric)
    if change is None:
        return "an unknown change"
    ends = "" if interval is None else f" ({interval.low:+.1f} to {interval.high:+.1f})"
    return f"{change:+.1f} %{ends}"


def _second_sentence(advice: Advice) -> str:
    kind = f"every number is {advice.origin.data_kind} ({advice.origin.time_model})"
    assumed = [each for each in advice.conditions if each.rate_per_s is None]
    if not assumed:
        return f"How it depends on budget and device was not run; {kind}."
    changing = [each for each in assumed if not each.stands]
    where = ", ".join(each.words for each in assumed)
    if not changing:
        return f"It stays first, or as good as the first, at {where}; {kind}."
    others = "; ".join(
        f"at {each.words} the first is {advice.describe(each.order[0].arm)}"
        if each.order
        else f"at {each.words} no arm serves every request"
        for each in changing
    )
    return f"It depends on what was assumed: {others}; {kind}."


def _starting(line: ServeLine) -> str:
    if line.refusal is None:
        return f"To start it:\n{line.command}"
    return f"The plugin for vLLM does not serve this ({line.refusal}); it would be\n{line.command}"


def _notes(advice: Advice, num_shown: int) -> tuple[str, ...]:
    several = len(advice.advised.cells) > 1
    how = (
        "paired t of log ratios over seeds"
        if several
        else "bootstrap of stretches of "
        f"{advice.declared.block}/{advice.declared.pieces} of the run"
    )
    limit = 100.0 * advice.ranking.indifference
    notes = [
        f"{len(advice.order)} arms; {num_shown} are shown, each at its best headroom and with what "
        "changes its numbers. Order: "
        + ("who keeps the target, then " if advice.target is not None else "")
        + f"throughput, TTFT p99, fewest settings beside the default; {limit:g} % counts as equal.",
        f"Intervals: {100.0 * advice.declared.level:g} %, {how}.",
    ]
    refusing = len(advice.arms) - len(advice.order)
    if refusing:
        notes.append(f"{refusing} arms are left out because they do not serve every request.")
    notes += [f"{words[0].upper()}{words[1:]}." for words in advice.bundle_words]
    if advice.budget_words is not None:
        notes.append(f"Budget: {advice.budget_words}.")
    return tuple(notes)


# -- as data -------------------------------------------------------------------------------------


def _summary(
    advice: Advice,
    sentences: Iterable[str],
    line: ServeLine,
    rows: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    return {
        "sentences": list(sentences),
        "serve": line.command,
        "serve_refusal": line.refusal,
        "model": advice.model,
        "device": advice.origin.device,
        "engine": advice.origin.engine,
        "data_kind": advice.origin.data_kind,
        "time_model": advice.origin.time_model,
        "budget_bytes_a_layer": advice.budget_bytes,
        "budget_words": advice.budget_words,
        "target": None if advice.target is None else str(advice.target),
        "advised": advice.advised.arm.axes,
        "default": advice.default.arm.axes,
        "arms": [dict(row) for row in rows],
        "all_arms": [
            {
                **each.arm.axes,
                **{name: each.metrics.get(name) for name in (THROUGHPUT, TTFT, *_SHOWN)},
                "cells": list(each.cells.values()),
            }
            for each in advice.order
        ],
        "sensitivity": [_condition_row(advice, each) for each in advice.conditions],
    }
