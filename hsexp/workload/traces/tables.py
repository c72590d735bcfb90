"""Traces that say how long prompts and outputs are: a column for each thing that a request needs.

    azure       TIMESTAMP,ContextTokens,GeneratedTokens     2023-11-16 18:17:03.9799600,4808,10
    lengths     arrival_s,input_tokens,output_tokens        0.046927,2358,531
    burstgpt    Timestamp,Model,Request tokens,Response tokens,...         45,GPT-4,1087,230,...
    vidur       arrived_at,num_prefill_tokens,num_decode_tokens            0.5,810,44
    mooncake    {"timestamp": 27482, "input_length": 1100, "output_length": 52,
                 "hash_ids": [46, 47, 2353]}
    bailian     {"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 30,
                 "output_length": 80, "turn": 2, "hash_ids": [1089, 1090]}
    aiperf      {"session_id": "a", "timestamp": 0, "delay": 500, "input_length": 300,
                 "output_length": 40}
    guidellm    {"timestamp": 1.5, "input_length": 256, "output_length": 128}

Columns may be in any order and have other names (`workload.columns`); further ones are ignored.
Requests share content where the table says so: by hashes of blocks, by a prefix, or by a session.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment
from hsexp.workload.traces.config import FormatName, TimeUnit, TraceWorkload
from hsexp.workload.traces.records import Container, Record, read_records
from hsexp.workload.traces.source import Source, TraceRow, unit_ns

ZERO_OUTPUT = "without output"
"""Why a row is left out."""


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """What the columns of a format are called and what they count."""

    name: FormatName
    columns: Mapping[str, str]
    """Columns that must be there: what they hold (a field of `TraceColumns`) -> the name."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """The same of columns that are used where they are there."""
    time_unit: TimeUnit
    is_sorted: bool = False
    """Whether the format is in order of time."""
    block_tokens: int | None = None
    """Tokens of a hashed block."""
    parent: str | None = None
    """Column with the session value of the turn before; a session value names one turn then."""
    has_partial_hash: bool = False
    """Whether a prompt that ends inside a block always has a hash for it."""

    def named(self, spec: TraceWorkload) -> "TableFormat":
        """The format with the columns and units that the settings name."""
        given = spec.columns.given
        return replace(
            self,
            columns={**self.columns, **given},
            optional={role: name for role, name in self.optional.items() if role not in given},
            time_unit=spec.time_unit or self.time_unit,
            is_sorted=self.is_sorted and not spec.sort,
            block_tokens=spec.block_tokens or self.block_tokens,
            parent=None if "session" in given else self.parent,
        )


AZURE = TableFormat(
    name="azure",
    columns={"time": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"},
    time_unit="date",
    is_sorted=True,
)
LENGTHS = TableFormat(
    name="lengths",
    columns={"prompt": "input_tokens", "output": "output_tokens"},
    optional={"time": "arrival_s", "prefix_id": "prefix_id", "prefix_tokens": "prefix_tokens"},
    time_unit="s",
)
BURSTGPT = TableFormat(
    name="burstgpt",
    columns={"time": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"},
    optional={"session": "Session ID"},
    time_unit="s",
    is_sorted=True,
)
VIDUR = TableFormat(
    name="vidur",
    columns={"prompt": "num_prefill_tokens", "output": "num_decode_tokens"},
    optional={"time": "arrived_at"},
    time_unit="s",
)
_LENGTHS_OF_BLOCKS = {"prompt": "input_length", "output": "output_length"}
MOONCAKE = TableFormat(
    name="mooncake",
    columns={"time": "timestamp", **_LENGTHS_OF_BLOCKS, "hashes": "hash_ids"},
    time_unit="ms",
    is_sorted=True,
    block_tokens=512,
    has_partial_hash=True,
)
BAILIAN = TableFormat(
    name="bailian",
    columns={"time": "timestamp", **_LENGTHS_OF_BLOCKS, "session": "chat_id"},
    optional={"hashes": "hash_ids"},
    time_unit="s",
    is_sorted=True,
    block_tokens=16,
    parent="parent_chat_id",
)
AIPERF = TableFormat(
    name="aiperf",
    columns=_LENGTHS_OF_BLOCKS,
    optional={
        "time": "timestamp",
        "session": "session_id",
        "pause": "delay",
        "hashes": "hash_ids",
    },
    time_unit="ms",
    block_tokens=512,
)
GUIDELLM = TableFormat(
    name="guidellm",
    columns={"time": "timestamp", **_LENGTHS_OF_BLOCKS},
    time_unit="s",
)

TABLES = (AZURE, LENGTHS, BAILIAN, MOONCAKE, BURSTGPT, VIDUR, AIPERF, GUIDELLM)
"""In the order in which a file is compared with them; the first that fits is its format."""


class TableReader:
    """Reads the rows of one table; rows that are left out are counted."""

    def __init__(
        self,
        source: Source,
        container: Container,
        table: TableFormat,
        spec: TraceWorkload,
        names: list[str],
        dropped: Counter[str],
    ) -> None:
        """
        Args:
            table: with the columns of the settings.
            names: columns of the file, or fields of its first record.
        """
        self._source = source
        self._container = container
        self._table = table
        self._spec = spec
        self._dropped = dropped
        self._columns = dict(table.columns)
        has_header = container in ("csv", "parquet")
        for role, name in table.optional.items():
            if name in names or not has_header:
                self._columns[role] = name
        self._required = [*table.columns.values(), *([table.parent] if table.parent else [])]
        self._prefixes = Prefixes()
        self._sessions: dict[Any, int] = {}
        self._num_sessions = 0
        self._ends: dict[Any, tuple[int, int]] = {}
        """Length of each prefix, and the line that says so."""
        self._latest_ns: dict[int | None, int] = {}
        """Time of the last row of each session; of all rows under None."""
        self._has_times: bool | None = None

    def rows(self) -> Iterator[TraceRow]:
        """The rows of the table.

        Raises:
            TraceError: a row cannot be served.
        """
        drops = self._spec.zero_output == "drop"
        remedy = "" if drops else "; workload.zero_output=drop leaves such rows out"
        output = self._columns["output"]
        for record in read_records(self._source, self._container, self._required):
            if drops and self._given(record, "output") and record.whole(output) == 0:
                self._dropped[ZERO_OUTPUT] += 1
                continue
            conversation = self._session(record)
            pause_ns = self._pause_ns(record)
            time_ns = self._time_ns(record, conversation, pause_ns)
            prompt_tokens = record.length(self._columns["prompt"])
            if self._spec.output_tokens is None or self._given(record, "output"):
                output_tokens = record.length(output, remedy=remedy)
            else:
                output_tokens = self._spec.output_tokens
            yield TraceRow(
                line=record.number,
                time_ns=time_ns,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                segments=self._segments(record, prompt_tokens),
                conversation=conversation,
                pause_ns=pause_ns,
            )

    def _given(self, record: Record, role: str) -> bool:
        """Whether a record has a value of this kind."""
        name = self._columns.get(role)
        return name is not None and record.values.get(name) not in (None, "")

    # -- times -------------------------------------------------------------------------------------

    def _time_ns(
        self, record: Record, conversation: int | None, pause_ns: int | None
    ) -> int | None:
        """Time of a row. A turn without one follows the turn before it after its pause."""
        if "time" not in self._columns:
            return None
        name, is_required = self._columns["time"], "time" in self._table.columns
        if not is_required and not self._given(record, "time"):
            before = self._latest_ns.get(conversation)
            if conversation is not None and before is not None:
                self._latest_ns[conversation] = before + pause_of(record, self._spec, pause_ns)
                return self._latest_ns[conversation]
            if self._has_times:
                raise record.error(f"{name} is missing, and the rows before it have one")
            self._has_times = False
            return None
        if self._has_times is False:
            raise record.error(f"{name} is {record.values[name]!r}, and the rows before have none")
        self._has_times = True
        if self._table.time_unit == "date":
            time_ns = record.date_ns(name)
        else:
            time_ns = record.time_ns(name, unit_ns(self._table.time_unit))
        if self._table.is_sorted:
            self._require_order(record, name, time_ns)
        if conversation is not None:
            self._latest_ns[conversation] = time_ns
        return time_ns

    def _require_order(self, record: Record, name: str, time_ns: int) -> None:
        if time_ns < self._latest_ns.get(None, 0):
            value = record.values[name]
            shown, got = ("", f", got {value}")
            if isinstance(value, int | float):
                shown, got = (f" {value:g}", "")
            raise record.error(
                f"{name}{shown} is earlier than the row before it{got}; workload.sort=true sorts "
                "the rows"
            )
        self._latest_ns[None] = time_ns

    def _pause_ns(self, record: Record) -> int | None:
        if not self._given(record, "pause"):
            return None
        return record.time_ns(self._columns["pause"], unit_ns(self._table.time_unit))

    # -- content -----------------------------------------------------------------------------------

    def _session(self, record: Record) -> int | None:
        if not self._given(record, "session"):
            return None
        value = record.values[self._columns["session"]]
        if not isinstance(value, str | int):
            raise record.error(
                f"{self._columns['session']} must be text or a number, got {value!r}"
            )
        if self._table.parent is not None and value not in self._sessions:
            parent = record.value(self._table.parent)
            if str(parent) != "-1":  # it may lie before the begin of the file
                self._sessions[value] = self._label(parent)
        return self._label(value)

    def _label(self, value: Any) -> int:
        """Number of a session, or of that of a turn."""
        if value not in self._sessions:
            self._sessions[value] = self._num_sessions
            self._num_sessions += 1
        return self._sessions[value]

    def _segments(self, record: Record, prompt_tokens: int) -> tuple[Segment, ...]:
        if "hashes" in self._table.columns or self._given(record, "hashes"):
            return self._blocks(record, prompt_tokens)
        if self._given(record, "prefix_id"):
            return self._prefix(record, prompt_tokens)
        return ()

    def _blocks(self, record: Record, prompt_tokens: int) -> tuple[Segment, ...]:
        """The prompt block by block. A segment's content id stands for the whole chain of hashes up
        to it, so equal ids mean equal prefixes even if a hash recurs at another place.

            hash_ids        [   46    ][   47    ][  2353 ]
            end_tokens             512       1,024    1,100      the last block may be partial
        """
        block = self._table.block_tokens
        if block is None:
            raise record.error("workload.block_tokens is required: tokens of a hashed block")
        hashes = _hashes(record, self._columns["hashes"])
        expected = -(-prompt_tokens // block)
        fewest = expected if self._table.has_partial_hash else prompt_tokens // block
        if not fewest <= len(hashes) <= expected:
            raise record.error(
                f"{self._columns['prompt']} {prompt_tokens} needs {expected} "
                f"{self._columns['hashes']} of {block} tokens, got {len(hashes)}"
            )
        return self._prefixes.blocks(hashes, block, prompt_tokens)

    def _prefix(self, record: Record, prompt_tokens: int) -> tuple[Segment, ...]:
        name, of = self._columns.get("prefix_tokens"), self._columns["prefix_id"]
        if name is None:
            raise record.error(f"{of} needs a column prefix_tokens; workload.columns names others")
        identity, tokens = record.values[of], record.whole(name)
        if tokens == 0:
            return ()
        tokens = record.length(name)
        if tokens > prompt_tokens:
            raise record.error(f"{name} {tokens} is more than the prompt's {prompt_tokens} tokens")
        known, line = self._ends.setdefault(identity, (tokens, record.number))
        if known != tokens:
            raise record.error(
                f"{name} of {of} {identity!r} must be {known}, as on line {line}, got {tokens}"
            )
        return (self._prefixes.extend(None, ("prefix", identity), tokens),)


def pause_of(record: Record, spec: TraceWorkload, pause_ns: int | None) -> int:
    """Pause of a turn that has no time.

    Raises:
        TraceError: nothing says it.
    """
    if pause_ns is not None:
        return pause_ns
    if spec.turns == "open":
        raise record.error(
            "a later turn has neither a time nor a pause; workload.turns=closed "
            "workload.think_s=5 sends it after the answer"
        )
    if spec.think_s is None:
        raise record.error(
            "a later turn has neither a time nor a pause; workload.think_s=5 sets one"
        )
    return 0


def _hashes(record: Record, name: str) -> list[Any]:
    """Hashes of a row; in a CSV file a JSON list, or separated by spaces."""
    value = record.value(name)
    if record.is_text:
        try:
            value = json.loads(value) if value.startswith("[") else [*map(int, value.split())]
        except ValueError:
            value = None
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise record.error(f"{name} must be a list of whole numbers")
    return value
