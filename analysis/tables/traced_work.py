"""What the traces of the submitted-work diagnostic add to Tables E-6 to E-10, and its windows.

A point of the diagnostic is run twice: block L without a trace (REF), block L_trace with one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from analysis.ledgers import Ledgers
from analysis.runs import Runs
from hsexp.config.arm import Arm
from hsexp.trace import Trace
from hsexp.trace.agreement import counts, requests_agree, steps_agree
from hsexp.trace.pools import Agreement, free_pages_agree
from hsexp.trace.shortages import checks
from hsexp.trace.usage import padding, slab_losses, usage
from hsexp.trace.work import lives, realised_window_ns, work

CAMPAIGN = "submitted_work"

NS_PER_S = 1e9


def traced_runs(ledgers: Ledgers, point: str) -> Runs:
    """The TRACE runs of an operating point."""
    return ledgers.runs(CAMPAIGN, f"{point}_trace")


def mean_of(
    runs: Runs, arm: Arm, quantities: Callable[[Trace], Mapping[str, float | None]]
) -> dict[str, float]:
    """Means over the seeds of what a trace says; empty unless every seed has a whole trace."""
    traces = _traces(runs, arm)
    if not traces or len(traces) < len(runs.seeds):
        return {}
    rows = [quantities(trace) for trace in traces.values()]
    means: dict[str, float] = {}
    for name in rows[0]:
        values = [value for row in rows if (value := row[name]) is not None]
        if len(values) == len(rows):
            means[name] = sum(values) / len(values)
    return means


def without_trace(ledgers: Ledgers, points: Iterable[str], arms: Iterable[Arm]) -> tuple[str, ...]:
    """The runs of the traced blocks that are there without a whole trace."""
    return tuple(
        f"{point}_trace: no whole trace of {arm.label}, seed {seed}"
        for point in points
        for arm in arms
        for seed in sorted(
            set(traced_runs(ledgers, point).cell_ids(arm))
            - set(_traces(traced_runs(ledgers, point), arm))
        )
    )


def _traces(runs: Runs, arm: Arm) -> dict[int, Trace]:
    histories = runs.histories(arm).items()
    return {seed: history.trace for seed, history in histories if history.trace is not None}


# -- quantities of one trace -----------------------------------------------------------------------


def replay(trace: Trace) -> dict[str, float | None]:
    """Table E-9: replay as planned at each resume, and prefill that was computed before."""
    resumed = [life for life in lives(trace) if life.episode]
    return {
        "planned_prompt_tokens": sum(life.planned_prompt_replay for life in resumed),
        "planned_output_tokens": sum(life.planned_output_replay for life in resumed),
        "recomputed_tokens": sum(life.recomputed_tokens for life in resumed),
    }


def calls(trace: Trace) -> dict[str, float | None]:
    """Table E-10: calls that ask for pages. Attention's pool is 0; D0's recurrent one is 1."""
    found = checks(trace)
    return {
        "attention_short": found.failed[0, "need > free > 0"],
        "attention_empty": found.failed[0, "free = 0"],
        "attention_passed": found.passed_at_zero[0],
        "recurrent_short": found.failed[1, "need > free > 0"],
        "other": found.failed.total()
        - found.failed[0, "need > free > 0"]
        - found.failed[0, "free = 0"]
        - found.failed[1, "need > free > 0"],
        "defer_label": found.labels["defer"],
        "preempt_label": found.labels["preempt"],
    }


def central(trace: Trace) -> dict[str, float | None]:
    """Work inside the window of the realised arrivals (B.8)."""
    window = realised_window_ns(trace)
    if window is None:
        return {}
    inside = work(trace, window)
    return {
        "window_s": (window[1] - window[0]) / NS_PER_S,
        "initial_tokens": inside.initial_tokens,
        "resume_tokens": inside.resume_tokens,
        "decode_tokens": inside.decode_tokens,
        "forwards": inside.num_forwards,
        "event_time_s": inside.event_time_ns / NS_PER_S,
    }


def pool_use(trace: Trace) -> dict[str, float | None]:
    """Use of the pools and slabs, by steps (E.1, E.12). None where there is no such thing."""
    used, padded, lost = usage(trace), padding(trace), slab_losses(trace)
    slabs = used.slabs
    stranded = None
    if used.stranded_byte_steps is not None and used.pool_byte_steps:
        stranded = 100.0 * used.stranded_byte_steps / used.pool_byte_steps
    occupied = None
    if slabs is not None and slabs.slab_slot_steps:
        occupied = 100.0 * slabs.used_slot_steps / slabs.slab_slot_steps
    room = padded.block_token_steps
    return {
        "stranded_percent": stranded,
        "padding_percent": 100.0 * padded.padding_token_steps / room if room else None,
        "slot_percent": occupied,
        "max_slabs": None if slabs is None else slabs.max_slabs,
        "max_used_slots": None if slabs is None else slabs.max_used,
        "reclaimed_slabs": None if slabs is None else lost.reclaimed_slabs,
        "cross_invalidations": None if slabs is None else lost.of_others,
    }


# -- two independent counts ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Agreements:
    """How far traces and runs agree, over all runs of a table."""

    totals: Agreement
    """Totals of the trace and of the ledger's row."""
    requests: Agreement
    steps: Agreement
    free_pages: Agreement
    conserved: Agreement | None
    """Steps with slabs; None if there are none."""

    @property
    def note(self) -> str:
        """One line for a table; empty if nothing was traced."""
        if not self.requests.num_all:
            return ""
        slabs = "" if self.conserved is None else f", slabs and slots at {self.conserved} steps"
        return (
            f"Traces and runs agree in {self.totals} totals, {self.requests} requests, the "
            f"prefill of {self.steps} steps, and the free pages of {self.free_pages} recorded "
            f"refusals and shortages{slabs}."
        )


def agreements(ledgers: Ledgers, points: Iterable[str], arms: Iterable[Arm]) -> Agreements:
    """Compare the traces of all runs with their rows and request tables."""
    totals, requests, steps, free, slabs = ([Agreement(num_equal=0, num_all=0)] for _ in range(5))
    arms = tuple(arms)
    for point in points:
        runs = traced_runs(ledgers, point)
        for arm in arms:
            cells = runs.cell_ids(arm)
            rows = runs.adopted.set_index("cell_id")
            for seed, trace in _traces(runs, arm).items():
                row = {str(name): value for name, value in rows.loc[cells[seed]].items()}
                found = counts(trace, row)
                equal = sum(count.agrees for count in found)
                totals.append(Agreement(num_equal=equal, num_all=len(found)))
                table = ledgers.request_table(CAMPAIGN, cells[seed])
                requests.append(requests_agree(trace, table))
                steps.append(steps_agree(trace))
                free.append(free_pages_agree(trace))
                used = usage(trace).slabs
                if used is not None:
                    slabs.append(used.conserved)
    return Agreements(
        totals=_sum(totals),
        requests=_sum(requests),
        steps=_sum(steps),
        free_pages=_sum(free),
        conserved=_sum(slabs) if len(slabs) > 1 else None,
    )


def _sum(agreements: Iterable[Agreement]) -> Agreement:
    found = list(agreements)
    return Agreement(
        num_equal=sum(each.num_equal for each in found),
        num_all=sum(each.num_all for each in found),
    )
