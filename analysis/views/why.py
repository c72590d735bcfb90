"""`python -m analysis why`: why a request waited, what it could have reused, and who evicted it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from analysis.command import parse_pairs
from analysis.errors import AnalysisError
from analysis.views.lanes import Lane, lanes
from analysis.views.queue import Relapse, Wait, relapses, wait_of
from analysis.views.refusals import Refused, refusals, sentence
from analysis.views.reuse import Cached, Lack, Reuse, reuses, why_lost
from analysis.views.run import TracedRun, one_line, open_run
from hsexp.trace import TraceError
from hsexp.trace.clock import NS_PER_S, Clock
from hsexp.trace.lineage import Change, lineages
from hsexp.trace.trace import Event

WIDTH = 100

TOP = 10
"""Requests that a list names."""

_MOST_NAMED = 8
"""Requests that a sentence names one by one."""

_UNBROKEN = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, until lines are wrapped."""

_MOST_CHANGES = 8
"""Changes of depth that a wait shows."""

_MOST_REFUSED = 12
"""Rows of refusals that a wait shows."""


def why(arguments: Sequence[str]) -> str:
    """The answer for one request, or, without `request=`, which requests to ask about.

    Raises:
        AnalysisError: an argument is refused, or the run has no such request.
    """
    given = parse_pairs(arguments, keys=("ledger", "run", "request"))
    run = open_run(given)
    try:
        if "request" in given:
            return explain(run, given["request"])
        return overview(run, given["ledger"])
    except TraceError as error:
        raise AnalysisError(f"run={run.attempt_id}: {error}") from None


@dataclass(kw_only=True)
class _View:
    """What the sentences need."""

    run: TracedRun
    clock: Clock
    lanes: Mapping[int, Lane]
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).replace(_UNBROKEN, " ")

    def say(self, text: str, *, indent: int = 2) -> None:
        pad = " " * indent
        self.lines.append(fill(text, WIDTH, initial_indent=pad, subsequent_indent=pad))

    def at(self, time_ns: int, text: str) -> None:
        """A line with its time."""
        stamp = f"  {seconds(time_ns):>10}  "
        self.lines.append(fill(text, WIDTH, initial_indent=stamp, subsequent_indent=" " * 14))

    def add(self, text: str) -> None:
        """A line below one with a time."""
        self.say(text, indent=14)

    def head(self, text: str) -> None:
        self.lines += ["", text]

    def name(self, request: int | None) -> str | None:
        return None if request is None else self.lanes[request].id

    def names(self, numbers: Sequence[int]) -> str:
        shown = ", ".join(self.lanes[number].id for number in numbers[:_MOST_NAMED])
        more = len(numbers) - _MOST_NAMED
        return f"{shown} and {more} more" if more > 0 else shown


def seconds(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:,.2f}{_UNBROKEN}s"


# -- one request -----------------------------------------------------------------------------------


def explain(run: TracedRun, wanted: str) -> str:
    """Everything about the request with this id.

    Raises:
        AnalysisError: the run has no such request.
        TraceError: the events contradict each other.
    """
    clock = Clock(run.trace)
    every = {lane.request: lane for lane in lanes(run.trace, clock)}
    lane = _find(every.values(), wanted, run)
    view = _View(run=run, clock=clock, lanes=every)
    view.lines += [
        f"Request {lane.id} of run {run.attempt_id}",
        f"  {run.campaign}: {one_line(run.settings)}",
        f"  {run.origin}",
        "",
    ]
    view.say(_life(lane))
    own = [each for each in reuses(run.trace) if each.request == lane.request]
    changed = {
        each.episode.episode: each.changes
        for each in lineages(run.trace)
        if each.episode.request == lane.request
    }
    by_request = refusals(run.trace, clock)
    refused = by_request.pop(lane.request, [])
    others = [each for theirs in by_request.values() for each in theirs]
    for reuse in own:
        mine = [each for each in refused if each.episode == reuse.episode]
        _explain_wait(view, reuse, mine, others)
        _explain_reuse(view, reuse, changed.get(reuse.episode, ()))
        _explain_losses(view, reuse)
    unadmitted = [each for each in refused if each.episode not in {reuse.episode for reuse in own}]
    if unadmitted:
        view.head("It was never admitted again. Its refusals")
        _list_refusals(view, unadmitted)
    _explain_preemptions(
        view, [each for each in relapses(run.trace) if each.preemption.victim == lane.request]
    )
    return view.text


def _find(every: Iterable[Lane], wanted: str, run: TracedRun) -> Lane:
    known = list(every)
    for lane in known:
        if lane.id == wanted:
            return lane
    near = [lane.id for lane in known if wanted in lane.id][:5]
    hint = f"; did you mean {', '.join(near)}" if near else ""
    ends = f"{known[0].id} to {known[-1].id}" if known else "none"
    raise AnalysisError(
        f"request={wanted}: run {run.attempt_id} traced no such request; it has {len(known)}, "
        f"{ends}{hint}"
    )


def _life(lane: Lane) -> str:
    """The request in a sentence or two."""
    waited = lane.waited_ns("waiting", "preempted")
    prompt = "" if lane.prompt_tokens is None else f" with {lane.prompt_tokens:,} prompt tokens"
    text = f"It joined the queue at {seconds(lane.start_ns)}{prompt}"
    prefills = [phase for phase in lane.phases if phase.kind == "prefill"]
    decodes = [phase for phase in lane.phases if phase.kind == "decode"]
    if prefills:
        text += f", was admitted at {seconds(prefills[0].start_ns)}"
    if decodes:
        text += f", had its first token at {seconds(decodes[0].start_ns)}"
    end = "finished" if lane.is_finished else "was last seen"
    text += f" and {end} at {seconds(lane.end_ns)}. It waited {seconds(waited)} in all"
    again = sum(phase.kind == "preempted" for phase in lane.phases)
    return text + (f", and was preempted {_times(again)}." if again else ".")


def _explain_wait(
    view: _View, reuse: Reuse, refused: Sequence[Refused], others: Iterable[Refused]
) -> None:
    """
    Args:
        refused: its own refusals in this wait.
        others: those of all other requests.
    """
    clock = view.clock
    entered = clock.of(reuse.enter)
    adopted = max(clock.of(reuse.adopt), entered)
    wait = wait_of(view.run.trace, reuse, clock, cap=view.run.cap)
    what = "Why it waited" if reuse.episode == 0 else f"Why it waited to come back ({_nth(reuse)})"
    view.head(f"{what}: {seconds(adopted - entered)}")
    view.at(entered, _entry(view, reuse, wait))
    if wait.num_steps:
        view.add(
            f"Meanwhile {_count(wait.num_steps, 'step')} started, with "
            f"{_count(wait.prefill_tokens, 'token')} to prefill and "
            f"{wait.decode_tokens:,} to decode."
        )
    if wait.num_full_steps:
        view.add(
            f"In {wait.num_full_steps:,} steps as many requests ran as the cap allows, so that "
            "nobody was asked."
        )
    asked = adopted if wait.first_asked_ns is None else max(wait.first_asked_ns, entered)
    if asked > entered:
        if wait.ahead and not reuse.episode:
            _explain_others(view, [each for each in others if entered <= each.start_ns < asked])
        if asked < adopted:
            view.at(asked, f"It was first asked, after {seconds(asked - entered)}.")
    _list_refusals(view, refused)
    if wait.num_not_ready:
        view.add(
            f"{_times(wait.num_not_ready).capitalize()} it waited for a step that was about to "
            "compute what it could reuse."
        )
    if wait.num_without_chunk:
        view.add(
            f"{_times(wait.num_without_chunk).capitalize()} the step had too few tokens left for "
            "its first chunk."
        )
    if wait.came_back:
        view.add(
            f"{_count(len(wait.came_back), 'preempted request')} came back before it "
            f"({view.names(wait.came_back)})."
        )
    if wait.overtaken_by:
        view.add(
            f"{_count(len(wait.overtaken_by), 'request')} that joined later went first "
            f"({view.names(wait.overtaken_by)})."
        )
    at_once = " at once" if adopted == entered else ""
    view.at(adopted, f"It was admitted{at_once}.")


def _entry(view: _View, reuse: Reuse, wait: Wait) -> str:
    """Who was there when it joined the queue."""
    most = "" if view.run.cap is None else f" of at most {view.run.cap}"
    running = f"{_count(wait.num_running, 'request')} ran{most}."
    came = "It joined the queue" if reuse.episode == 0 else "It was back in the queue"
    if not wait.ahead:
        return f"{came}, in which nobody else waited; {running}"
    others = _count(len(wait.ahead), "other")
    return f"{came}, in which {others} waited ({view.names(wait.ahead)}); {running}"


def _explain_others(view: _View, others: Sequence[Refused]) -> None:
    """What held up those who were asked before it."""
    if not others:
        view.add("Until it was first asked nobody was refused.")
        return
    total = sum(each.time_ns for each in others)
    view.add(f"Until it was first asked others were refused for {seconds(total)}, most of all")
    for each in sorted(others, key=lambda each: (-each.time_ns, each.start_ns))[:3]:
        why_refused = sentence(each, view.run.trace.memory)
        view.add(f"- request {view.name(each.request)} for {seconds(each.time_ns)}: {why_refused}")


def _list_refusals(view: _View, refused: Sequence[Refused]) -> None:
    for each in refused[:_MOST_REFUSED]:
        lasting = f" for {seconds(each.time_ns)}" if each.time_ns else ""
        why_refused = sentence(each, view.run.trace.memory)
        view.at(each.start_ns, f"Refused {_times(each.count)}{lasting}: {why_refused}.")
    if len(refused) > _MOST_REFUSED:
        rest = refused[_MOST_REFUSED:]
        view.add(f"... and {sum(each.count for each in rest):,} more refusals.")


def _explain_reuse(view: _View, reuse: Reuse, changes: Sequence[Change]) -> None:
    grid = view.run.trace.memory.checkpoint_grid
    adopted, enter = reuse.adopted, reuse.enter
    again = "" if reuse.episode == 0 else f" when it came back ({_nth(reuse)})"
    view.head(f"What it could have reused{again}")
    deepest = len(enter.boundary_keys) * grid
    if not deepest and not reuse.adopted_tokens:
        view.say(
            f"Nothing: it had {enter.tokens:,} tokens, and the first boundary of the checkpoint "
            f"grid is at {grid:,}."
        )
        return
    best = max([reuse.entry_tokens, *(change.after for change in changes)])
    view.say(
        f"Of its {enter.tokens:,} tokens it could reuse {deepest:,} at most, in steps of {grid:,}. "
        f"The cache had {reuse.entry_tokens:,} when it joined the queue (Jenter), {best:,} at best "
        f"while it waited, and {reuse.adopted_tokens:,} when it was admitted (Jadopt)."
    )
    if len(changes) > _MOST_CHANGES:
        view.add(f"After {_count(len(changes) - _MOST_CHANGES, 'earlier change')} of that depth:")
    for change in changes[-_MOST_CHANGES:]:
        view.at(view.clock.start(change.step), _change(view, change))
    view.say(
        f"At its admission attention reached {adopted.attention:,} tokens (Amax) and a recurrent "
        f"state {adopted.recurrent:,} (Rmax)."
    )
    if reuse.lost_tokens:
        view.say(
            f"If nothing had been evicted, it would have adopted {reuse.ever_tokens:,}: it "
            f"computed {reuse.lost_tokens:,} tokens that had been computed before."
        )
    elif reuse.adopted_tokens >= deepest:
        view.say("It got all that there was.")
    else:
        beyond = f" beyond {reuse.ever_tokens:,} tokens" if reuse.ever_tokens else ""
        view.say(
            f"Evictions cost it nothing: nobody had computed a checkpoint of its prefix{beyond}."
        )
    if adopted.attention > adopted.joint and adopted.recurrent <= adopted.joint:
        view.say(
            f"It lacked recurrent state: attention was there up to {adopted.attention:,}, and no "
            f"state beyond {adopted.joint:,}."
        )
    elif adopted.recurrent > adopted.joint and adopted.attention <= adopted.joint:
        view.say(
            f"It lacked attention: a state was there at {adopted.recurrent:,}, and attention ended "
            f"before {adopted.joint + grid:,}."
        )


def _change(view: _View, change: Change) -> str:
    """An event that changed what it could reuse while it waited."""
    what = "state" if change.entry == "state" else "the attention block"
    name = f"{what} {change.page.page}.{change.page.life}"
    depths = f"{change.before:,} -> {change.after:,} tokens"
    producer = f"request {view.name(change.producer)}"
    if change.kind == "publish":
        return f"{depths}: {producer} published {name}."
    reason = why_lost(change.cause or "", change.act or "", view.name(change.request))
    return f"{depths}: {name} of {producer} was lost: {reason}."


def _explain_losses(view: _View, reuse: Reuse) -> None:
    if not reuse.lacks:
        return
    view.head("Who evicted what it lacked")
    for lack in reuse.lacks:
        view.say(_loss(view, reuse, lack))


def _loss(view: _View, reuse: Reuse, lack: Lack) -> str:
    cached, lost = lack.cached, lack.cached.lost
    assert lost is not None
    what = _what(cached, lack)
    producer = view.name(cached.producer)
    made = "it had computed itself" if cached.producer == reuse.request else (
        f"request {producer} had computed"
    )  # fmt: skip
    published = seconds(view.clock.start(cached.published_step))
    lost_ns, entered = view.clock.start(lost.step), view.clock.of(reuse.enter)
    if lost_ns < entered:
        when = f"{seconds(entered - lost_ns)} before it joined the queue"
    else:
        when = f"{seconds(lost_ns - entered)} after it had joined the queue"
    reason = why_lost(lost.cause, lost.act, view.name(lost.request))
    return f"{what}, which {made} at {published}, was lost at {seconds(lost_ns)}, {when}: {reason}."


def _what(cached: Cached, lack: Lack) -> str:
    if cached.entry == "state":
        return f"The state at {lack.boundary:,} tokens ({cached.name})"
    return (
        f"The attention block that ends at {cached.tokens:,} tokens ({cached.name}), below "
        f"the boundary at {lack.boundary:,}"
    )


def _explain_preemptions(view: _View, mine: Sequence[Relapse]) -> None:
    view.head("Preemptions")
    if not mine:
        view.say("None.")
    for each in mine:
        release, short = each.preemption.release, each.preemption.short
        if short is None:
            by = "the trace names nobody for whom"
        elif short.request == release.request:
            by = f"it found no room for its own next step: {_shortage(view, short)}"
        else:
            by = f"request {view.name(short.request)} found no room: {_shortage(view, short)}"
        pin = (
            "No checkpoint was pinned for it."
            if each.pinned_tokens is None
            else f"Its checkpoint at {each.pinned_tokens:,} tokens was pinned."
        )
        view.at(
            view.clock.of(release),
            f"It gave up {release.tokens:,} computed tokens, because {by}. {pin} It computed "
            f"{each.recomputed_tokens:,} of these tokens again.",
        )


def _shortage(view: _View, short: Event) -> str:
    parts = [
        f"it needed {_count(need, 'page')} of pool {pool.name} and {free:,} were free"
        for pool, need, free in zip(
            view.run.trace.memory.pools, short.need, short.free, strict=True
        )
        if need > free
    ]
    return " and ".join(parts) or "its next step needed more than was free"


# -- which requests to ask about -------------------------------------------------------------------


def overview(run: TracedRun, ledger: str) -> str:
    """The requests that lost most by eviction, and those that waited longest.

    Args:
        ledger: as it was typed, for the command to type next.

    Raises:
        TraceError: the events contradict each other.
    """
    clock = Clock(run.trace)
    every = {lane.request: lane for lane in lanes(run.trace, clock)}
    view = _View(run=run, clock=clock, lanes=every)
    found = reuses(run.trace)
    suffered: dict[int, list[Reuse]] = {}
    for each in found:
        suffered.setdefault(each.request, []).append(each)
    lost = {request: sum(each.lost_tokens for each in own) for request, own in suffered.items()}
    refused = refusals(run.trace, clock)
    view.lines += [
        f"Run {run.attempt_id}",
        f"  {run.campaign}: {one_line(run.settings)}",
        f"  {run.origin}",
    ]
    worst = [number for number in _top(lost) if lost[number]]
    num_losers, total = sum(map(bool, lost.values())), sum(lost.values())
    view.head(
        f"Lost most by eviction ({num_losers} of {len(every)} requests computed {total:,} tokens "
        "again)"
    )
    rows = [_loser(view, suffered[number], lost[number]) for number in worst]
    _tabulate(view, ("request", "lost tokens", "adopted", "without loss", "because"), rows)
    waits = {number: lane.waited_ns("waiting", "preempted") for number, lane in every.items()}
    slowest = [number for number in _top(waits) if waits[number]]
    view.head(f"Waited longest ({sum(map(bool, waits.values()))} requests waited)")
    lines = [_waiter(view, number, waits[number], refused.get(number, [])) for number in slowest]
    _tabulate(view, ("request", "waited", "refused", "preempted", "longest refusal"), lines)
    command = f"python -m analysis why ledger={ledger} run={run.attempt_id} request=ID"
    view.lines += ["", f"Ask about one of them: {command}"]
    return view.text


def _top(values: Mapping[int, int]) -> list[int]:
    return sorted(values, key=lambda number: (-values[number], number))[:TOP]


def _loser(view: _View, own: Sequence[Reuse], lost: int) -> tuple[str, ...]:
    worst = max(own, key=lambda each: each.lost_tokens)
    culprit = worst.culprit
    because = ""
    if culprit is not None and culprit.cached.lost is not None:
        loss = culprit.cached.lost
        time = seconds(view.clock.start(loss.step))
        what = "state" if culprit.cached.entry == "state" else "attention"
        reason = why_lost(loss.cause, loss.act, view.name(loss.request))
        because = f"the {what} at {culprit.cached.tokens:,} was lost at {time}: {reason}"
    return (
        view.lanes[worst.request].id,
        f"{lost:,}",
        f"{worst.adopted_tokens:,}",
        f"{worst.ever_tokens:,}",
        because,
    )


def _waiter(view: _View, number: int, waited: int, own: Sequence[Refused]) -> tuple[str, ...]:
    lane = view.lanes[number]
    again = sum(phase.kind == "preempted" for phase in lane.phases)
    longest = max(own, key=lambda each: (each.time_ns, each.count), default=None)
    reason = "never refused: it waited behind others" if longest is None else (
        f"{seconds(longest.time_ns)}: {sentence(longest, view.run.trace.memory)}"
    )  # fmt: skip
    return (
        lane.id,
        seconds(waited),
        f"{sum(each.count for each in own):,}",
        str(again),
        reason,
    )


def _tabulate(view: _View, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under their heads; all columns but the last are numbers."""
    if not rows:
        view.say("None.")
        return
    widths = [max(len(line[place]) for line in (heads, *rows)) for place in range(len(heads) - 1)]
    for line in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=False)]
        view.lines.append(f"  {'  '.join(cells)}  {line[-1]}".rstrip())


def _nth(reuse: Reuse) -> str:
    return f"after preemption {reuse.episode}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
