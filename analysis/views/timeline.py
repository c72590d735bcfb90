"""`python -m analysis timeline`: one run as a page that needs nothing else.

The page holds its data as deflated JSON in base64, and draws on canvases. Columns of times are
differences, in microseconds, which compress well.
"""

import base64
import html
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from analysis.views.lanes import PHASES, Lane, Phase, lanes
from analysis.views.pools import OWNERS, Sample, fullest, samples
from analysis.views.refusals import Refused, refusals, sentence
from analysis.views.reuse import Reuse, reuses
from analysis.views.run import TracedRun, one_line, write_view
from analysis.views.states import Mark, MarkKind, marks
from hsexp.trace.clock import NS_PER_S, Clock

MAX_SAMPLES = 12_000
"""Moments of the pools, and of the requests that run and wait, that a page holds."""

_MARKS: tuple[MarkKind, ...] = ("published", "lost", "retained", "pinned")
"""In the order of the page."""

_NS_PER_US = 1_000


def timeline(arguments: Sequence[str]) -> Path:
    """Write the page of a run. Returns its path.

    Raises:
        AnalysisError: an argument is refused, or the file cannot be written.
    """
    return write_view(arguments, "timeline-{}.html", render)


def render(run: TracedRun) -> str:
    """The page.

    Raises:
        TraceError: the events contradict each other.
    """
    folder = resources.files("analysis.views") / "page"
    data = json.dumps(page_data(run), separators=(",", ":")).encode()
    parts = {
        "title": html.escape(f"Timeline of run {run.attempt_id}"),
        "settings": html.escape(f"{run.campaign}: {one_line(run.settings)}"),
        "origin": html.escape(run.origin),
        "style": (folder / "timeline.css").read_text(encoding="utf-8"),
        "script": (folder / "timeline.js").read_text(encoding="utf-8"),
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
    }
    page = (folder / "timeline.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    return page


def read_data(page: str) -> dict[str, Any]:
    """The data of a page, as its script sees it before it sums up the differences."""
    start = page.index('<script type="text/plain" id="data">')
    text = page[page.index(">", start) + 1 : page.index("</script>", start)]
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return data


def page_data(run: TracedRun) -> dict[str, Any]:
    """What the page draws."""
    trace, clock = run.trace, Clock(run.trace)
    every = lanes(trace, clock)
    found = reuses(trace)
    events = marks(trace, clock)
    all_samples = samples(trace, clock)
    shown = fullest(all_samples, MAX_SAMPLES)
    remarks = []
    if len(shown) < len(all_samples):
        remarks.append(
            f"Pools are drawn at {len(shown):,} of {len(all_samples):,} moments: of each stretch "
            "of time the one with the fewest pages left."
        )
    remarks += [
        "Where several moments share a pixel, the one with the fewest pages left is drawn.",
        "Padding is room in the attention pages of running requests that no token has reached. "
        "Pages are stranded while another pool has none left. A loss is marked on the request that "
        "it was for. State 17.3 is in the third life of page 17.",
    ]
    waits = refusals(trace, clock)
    notes = _Notes(run, waits, found)
    return {
        "end": _us(clock.end_ns),
        "block_size": trace.memory.block_size,
        "pools": [
            {"name": pool.name, "usable": pool.num_pages - 1, "page_bytes": pool.page_bytes}
            for pool in trace.memory.pools
        ],
        "samples": _samples(shown, len(trace.memory.pools)),
        "load": _load(every),
        "lanes": _lanes(every),
        "phases": _phases(every, notes),
        "notes": notes.texts,
        "marks": _marks(events, every),
        "causes": list(_CAUSES.values()),
        "totals": _totals(every, events, found, clock),
        "remarks": " ".join(remarks),
    }


def _samples(shown: Sequence[Sample], num_pools: int) -> dict[str, Any]:
    return {
        "time": _differences([_us(sample.time_ns) for sample in shown]),
        "pages": [
            [[sample.pages[pool][owner] for sample in shown] for owner in range(len(OWNERS))]
            for pool in range(num_pools)
        ],
        "padding": [sample.padding_tokens for sample in shown],
    }


def _load(every: Sequence[Lane]) -> dict[str, Any]:
    """Requests that run and wait, whenever one of them changes."""
    changes: dict[int, list[int]] = {0: [0, 0]}
    for lane in every:
        for phase in lane.phases:
            column = int(phase.kind in ("waiting", "preempted"))
            changes.setdefault(_us(phase.start_ns), [0, 0])[column] += 1
            changes.setdefault(_us(phase.end_ns), [0, 0])[column] -= 1
    running = waiting = 0
    rows: list[tuple[int, int, int]] = []
    for time, change in sorted(changes.items()):
        running, waiting = running + change[0], waiting + change[1]
        rows.append((time, running, waiting))
    kept = _busiest(rows, MAX_SAMPLES)
    return {
        "time": _differences([time for time, _, _ in kept]),
        "running": [running for _, running, _ in kept],
        "waiting": [waiting for _, _, waiting in kept],
    }


def _busiest(rows: list[tuple[int, int, int]], limit: int) -> list[tuple[int, int, int]]:
    """At most `limit` rows: of each stretch of time the one with the most requests."""
    if len(rows) <= limit:
        return rows
    end, best = rows[-1][0] + 1, dict[int, tuple[int, int, int]]()
    for row in rows:
        place = row[0] * limit // end
        if place not in best or sum(row[1:]) > sum(best[place][1:]):
            best[place] = row
    return list(best.values())


def _lanes(every: Sequence[Lane]) -> dict[str, Any]:
    return {
        "id": [lane.id for lane in every],
        "tokens": [lane.prompt_tokens for lane in every],
        "start": _differences([_us(lane.start_ns) for lane in every]),
        "phases": [len(lane.phases) for lane in every],
        "finished": [int(lane.is_finished) for lane in every],
    }


def _phases(every: Sequence[Lane], notes: "_Notes") -> dict[str, Any]:
    """Phases lane by lane; `gap` is the time since the phase before it ended."""
    gaps, lengths, kinds, numbers = [], [], [], []
    for lane in every:
        now = _us(lane.start_ns)
        for phase in lane.phases:
            start, end = _us(phase.start_ns), _us(phase.end_ns)
            gaps.append(start - now)
            lengths.append(end - start)
            kinds.append(PHASES.index(phase.kind))
            numbers.append(notes.of(lane, phase))
            now = end
    return {"gap": gaps, "length": lengths, "kind": kinds, "note": numbers}


class _Notes:
    """Why a request waited and what it adopted, as numbers of texts."""

    def __init__(
        self,
        run: TracedRun,
        waits: Mapping[int, Sequence[Refused]],
        found: Sequence[Reuse],
    ) -> None:
        self._memory = run.trace.memory
        self._waits = waits
        self._reuses = {(reuse.request, reuse.episode): reuse for reuse in found}
        self._numbers = {"": 0}

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def of(self, lane: Lane, phase: Phase) -> int:
        return self._numbers.setdefault(self._text(lane, phase), len(self._numbers))

    def _text(self, lane: Lane, phase: Phase) -> str:
        if phase.kind in ("waiting", "preempted"):
            own = self._waits.get(lane.request, ())
            own = [refused for refused in own if refused.episode == phase.episode]
            if not own:
                return ""
            longest = max(own, key=lambda refused: (refused.time_ns, refused.count))
            count = sum(refused.count for refused in own)
            return f"{count:,} refusals, most of all {sentence(longest, self._memory)}"
        reuse = self._reuses.get((lane.request, phase.episode))
        if phase.kind == "decode" or reuse is None:
            return ""
        text = f"adopted {reuse.adopted_tokens:,} of {reuse.enter.tokens:,} tokens"
        if reuse.lost_tokens:
            text += f", {reuse.lost_tokens:,} fewer because of evictions"
        return text


_CAUSES = {
    "admit": "its page went to the admission of",
    "extend": "its page went to the next step of",
    "slab": "its slab was reclaimed for",
    "leaf": "younger leaves took its place, of",
    "withdrawn": "withdrawn, because its step was given up, by",
    "other": "its page was needed",
}
"""Words for a loss, before the request that it was for."""


def _cause(mark: Mark) -> int:
    names = list(_CAUSES)
    if mark.kind != "lost":
        return 0
    name = mark.cause if mark.cause in ("slab", "leaf", "withdrawn") else mark.act
    return names.index(name if name in names else "other")


def _marks(events: Sequence[Mark], every: Sequence[Lane]) -> dict[str, Any]:
    place = {lane.request: number for number, lane in enumerate(every)}
    rows = sorted(events, key=lambda mark: (mark.time_ns, mark.seq))

    def column(value: Callable[[Mark], int]) -> list[int]:
        return [value(mark) for mark in rows]

    return {
        "time": _differences([_us(mark.time_ns) for mark in rows]),
        "kind": column(lambda mark: _MARKS.index(mark.kind)),
        "lane": column(lambda mark: place.get(_or(mark.request), -1)),
        "producer": column(lambda mark: place.get(_or(mark.state.producer), -1)),
        "page": column(lambda mark: mark.state.page),
        "life": column(lambda mark: mark.state.life),
        "tokens": column(lambda mark: mark.state.tokens or 0),
        "cause": column(_cause),
    }


def _totals(
    every: Sequence[Lane], events: Sequence[Mark], found: Sequence[Reuse], clock: Clock
) -> str:
    preempted = sum(phase.kind == "preempted" for lane in every for phase in lane.phases)
    counts = {kind: sum(mark.kind == kind for mark in events) for kind in _MARKS}
    lost_tokens = sum(reuse.lost_tokens for reuse in found)
    return (
        f"{len(every):,} requests in {clock.end_ns / NS_PER_S:,.1f} s, {preempted:,} preemptions; "
        f"checkpoints: {counts['published']:,} published, {counts['lost']:,} lost, "
        f"{counts['retained']:,} retained, {counts['pinned']:,} pinned; evictions made requests "
        f"compute {lost_tokens:,} tokens again"
    )


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in zip([0, *values], values, strict=False)]


def _us(time_ns: int) -> int:
    return time_ns // _NS_PER_US


def _or(request: int | None) -> int:
    return -1 if request is None else request
