"""Traces that hold text: prompts, and conversations of which every answered turn is a request.

    sharegpt    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}, ...]}
    openai      {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}
    vllm        {"prompt": "...", "output_tokens": 128}
    aiperf      {"text": "...", "output_length": 128}
                {"session_id": "a", "turns": [{"text": "...", "output_length": 128, "delay": 500}]}
    guidellm    {"prefix": "...", "prompt": "...", "output_tokens_count": 128}
                {"prompt_0": "...", "output_tokens_count_0": 128, "prompt_1": "...", ...}

    turn 1   [ human 1 ]                         generates gpt 1
    turn 2   [ human 1 ][ gpt 1 ][ human 2 ]     generates gpt 2
              \\_______/ shared with turn 1

Each message is a segment whose content id stands for all messages up to it, so later turns share
the earlier ones, and two conversations share the messages with which both begin. A later turn that
waits for the answer (`turns=closed`) shares that, too: it is what the engine generated. Prompts
without a conversation share the blocks of 16 tokens (`block_tokens`) with which both begin.
"""

import importlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from hsexp.config.base import ConfigError
from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment
from hsexp.workload.traces.config import FormatName, TraceWorkload
from hsexp.workload.traces.records import Container, Record, read_records
from hsexp.workload.traces.source import Source, TraceRow, unit_ns
from hsexp.workload.traces.tables import pause_of

CHARACTERS_PER_TOKEN = 4
"""A common rule of thumb for English text, used where no tokenizer is named."""

BLOCK_TOKENS = 16
"""Tokens of the blocks by which prompts share: those of vLLM."""

UNANSWERED = "messages without an answer"
"""Why a message is not a request."""

TEXT_FIELDS = {
    "sharegpt": ("conversations",),
    "openai": ("messages",),
    "aiperf": ("turns", "text", "texts", "text_input"),
}
"""Fields of a record, one of which tells its format."""

_OUTPUT = {
    "sharegpt": "output_tokens",
    "openai": "output_length",
    "vllm": "output_tokens",
    "aiperf": "output_length",
    "guidellm": "output_tokens_count",
}
_IN_MILLISECONDS = ("openai", "aiperf")
_ASKING = frozenset({"human", "user"})
_ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
_TURN = re.compile(r"prompt_([0-9]+)")

_log = logging.getLogger(__name__)


def is_guidellm_dialogue(names: list[str]) -> bool:
    """Whether the fields are those of turns side by side: `prompt_0`, `prompt_1`."""
    return any(map(_TURN.fullmatch, names))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Said:
    """What one turn adds to its conversation."""

    content: Hashable
    """Equal contents are equal text."""
    tokens: int
    output_tokens: int | None = None
    """None asks for nothing: it only lengthens the history."""
    answer: Hashable = None
    """Text of the answer, which the next turn repeats; None where no text is known."""
    time_ns: int | None = None
    pause_ns: int | None = None


class TextReader:
    """Reads prompts and conversations; messages without an answer are counted.

    A request is a message that the next one answers, both not empty; its prompt is every message up
    to it. A message without an answer is not a request: it stays in the history of later turns. Any
    other speaker's text (a system prompt, say) only lengthens the history.

    Tokens are counted message by message, without a chat template: by the named tokenizer, else
    one per four characters, rounded up.
    """

    def __init__(
        self,
        source: Source,
        container: Container,
        name: FormatName,
        spec: TraceWorkload,
        names: list[str],
        dropped: Counter[str],
    ) -> None:
        """
        Args:
            names: fields of the first record.

        Raises:
            ConfigError: the tokenizer cannot be loaded.
        """
        self._source = source
        self._container = container
        self._name = name
        self._spec = spec
        self._dropped = dropped
        self._tokenizer = _tokenizer(spec.tokenizer)
        self._block_tokens = spec.block_tokens or BLOCK_TOKENS
        self._unit_ns = unit_ns(spec.time_unit or ("ms" if name in _IN_MILLISECONDS else "s"))
        self._columns = {
            "time": "timestamp",
            "pause": "delay",
            "session": "session_id",
            "output": _OUTPUT[name],
            **spec.columns.given,
        }
        self._prefixes = Prefixes()
        self._sessions: dict[Hashable, int] = {}
        self._dialogue = self._dialogue_of(names)

    def _dialogue_of(self, names: list[str]) -> Callable[[Record], Iterator[_Said]] | None:
        """What reads the turns of a record; None where a record is a prompt."""
        match self._name:
            case "sharegpt":
                return self._sharegpt
            case "openai":
                return self._openai
            case "aiperf" if "turns" in names:
                return self._aiperf
            case "guidellm" if is_guidellm_dialogue(names):
                return self._guidellm
        return None

    def rows(self) -> Iterator[TraceRow]:
        """Rows in the order of the file.

        Raises:
            TraceError: a record is broken, or says no length.
        """
        what = "conversations" if self._dialogue else "requests"
        for index, record in enumerate(read_records(self._source, self._container, (), of=what)):
            if self._dialogue is None:
                yield self._prompt(record)
            else:
                yield from self._conversation(index, record, self._dialogue(record))
        if num_unanswered := self._dropped[UNANSWERED]:
            _log.info("%s: %d human messages have no answer", self._source.path, num_unanswered)

    # -- conversations -----------------------------------------------------------------------------

    def _conversation(
        self, index: int, record: Record, turns: Iterator[_Said]
    ) -> Iterator[TraceRow]:
        """The requests of one conversation.

        Args:
            index: place of the record in the file.
        """
        history: list[Segment] = []
        before_ns: int | None = None
        label = index if self._name == "sharegpt" else self._label(record, index)
        for place, said in enumerate(turns):
            parent = history[-1] if history else None
            end = (parent.end_tokens if parent else 0) + said.tokens
            history.append(self._prefixes.extend(parent, said.content, end))
            if said.output_tokens is None:
                continue
            answer = self._answer(history[-1], said, (index, place))
            before_ns = self._time_after(record, before_ns, said)
            yield TraceRow(
                line=record.number,
                prompt_tokens=end,
                output_tokens=said.output_tokens,
                segments=tuple(history),
                conversation=label,
                time_ns=before_ns,
                pause_ns=said.pause_ns,
                answer=answer,
            )
            if said.answer is None and answer is not None:
                history.append(answer)

    def _answer(self, prompt: Segment, said: _Said, place: tuple[int, int]) -> Segment | None:
        """The answer as content of the next prompt; None where that has it as text of its own."""
        if said.answer is not None and self._spec.turns == "open":
            return None
        assert said.output_tokens is not None
        end = prompt.end_tokens + said.output_tokens
        content = ("answer", *place) if said.answer is None else said.answer
        return self._prefixes.extend(prompt, content, end, generated=True)

    def _time_after(self, record: Record, before_ns: int | None, said: _Said) -> int | None:
        """Time of a turn. One without a time follows the turn before it after its pause."""
        if said.time_ns is not None or before_ns is None:
            return said.time_ns
        return before_ns + pause_of(record, self._spec, said.pause_ns)

    def _sharegpt(self, record: Record) -> Iterator[_Said]:
        messages = record.values.get("conversations")
        if not isinstance(messages, list):
            raise record.error("a conversation must be an object with a list `conversations`")
        texts = [_message(record, message, "from", "value") for message in messages]
        for i, (speaker, text) in enumerate(texts):
            if text:
                output_tokens, answer = None, None
                if speaker in _ASKING:
                    answer = self._answered(texts, i)
                    if answer is None:
                        self._dropped[UNANSWERED] += 1
                    else:
                        output_tokens = self._tokenizer.count(answer[1])
                yield self._said((speaker, text), output_tokens, answer)

    def _openai(self, record: Record) -> Iterator[_Said]:
        """Every assistant's message is an answer. A record that says the length of an output is the
        request of its last message, and of no other one."""
        messages = record.values.get("messages")
        if not isinstance(messages, list):
            raise record.error("a conversation must be an object with a list `messages`")
        texts = [_message(record, message, "role", "content") for message in messages]
        is_one = record.values.get(self._columns["output"]) is not None
        time_ns, pause_ns = self._times(record)
        for i, (speaker, text) in enumerate(texts):
            if not text:
                continue
            output_tokens, answer = None, None
            if is_one:
                if i == len(texts) - 1:
                    output_tokens = record.length(self._columns["output"])
            elif speaker not in _ANSWERING:
                answer = self._answered(texts, i)
                if answer is not None:
                    output_tokens = self._tokenizer.count(answer[1])
                elif speaker in _ASKING:
                    self._dropped[UNANSWERED] += 1
            if output_tokens is None:
                yield self._said((speaker, text))
            else:
                yield self._said((speaker, text), output_tokens, answer, time_ns, pause_ns)
                time_ns = pause_ns = None

    def _aiperf(self, record: Record) -> Iterator[_Said]:
        turns = record.values.get("turns")
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise record.error("turns must be a list of objects")
        for place, values in enumerate(turns):
            turn = Record(source=record.source, number=record.number, values=values)
            content = (values.get("role") or "user", _text(turn, "text", "texts"))
            is_system = place == 0 and values.get("role") == "system"
            output_tokens = None if is_system else self._output_tokens(turn, "output_length")
            yield self._said(content, output_tokens, None, *self._times(turn))

    def _guidellm(self, record: Record) -> Iterator[_Said]:
        if record.values.get("prefix"):
            yield self._said(("system", _text(record, "prefix")))
        numbers = sorted(int(found[1]) for found in map(_TURN.fullmatch, record.values) if found)
        for number in numbers:
            if record.values[f"prompt_{number}"] in (None, ""):
                continue  # a shorter conversation of the same table
            output_tokens = self._output_tokens(record, f"output_tokens_count_{number}")
            yield self._said(("user", _text(record, f"prompt_{number}")), output_tokens)

    def _answered(self, texts: list[tuple[str, str]], i: int) -> tuple[str, str] | None:
        """The answer to a message; None where there is none."""
        speaker, text = texts[i + 1] if i + 1 < len(texts) else ("", "")
        return (speaker, text) if speaker in _ANSWERING and text else None

    def _said(
        self,
        content: tuple[str, str],
        output_tokens: int | None = None,
        answer: tuple[str, str] | None = None,
        time_ns: int | None = None,
        pause_ns: int | None = None,
    ) -> _Said:
        return _Said(
            content=content,
            tokens=self._tokenizer.count(content[1]),
            output_tokens=output_tokens,
            answer=answer,
            time_ns=time_ns,
            pause_ns=pause_ns,
        )

    # -- prompts -----------------------------------------------------------------------------------

    def _prompt(self, record: Record) -> TraceRow:
        """One request. Its text, and the prefix before it, share block by block."""
        fields = {"aiperf": ("text", "texts", "text_input")}.get(self._name, ("prompt",))
        blocks = []
        if self._name == "guidellm" and record.values.get("prefix"):
            blocks += self._tokenizer.blocks(_text(record, "prefix"), self._block_tokens)
        blocks += self._tokenizer.blocks(_text(record, *fields), self._block_tokens)
        segments: list[Segment] = []
        end = 0
        for content, tokens in blocks:
            end += tokens
            segments.append(self._prefixes.extend(segments[-1] if segments else None, content, end))
        time_ns, pause_ns = self._times(record)
        session = record.values.get(self._columns["session"])
        return TraceRow(
            line=record.number,
            prompt_tokens=end,
            output_tokens=self._output_tokens(record, self._columns["output"]),
            segments=tuple(segments),
            conversation=None if session is None else self._label(record, 0),
            time_ns=time_ns,
            pause_ns=pause_ns,
        )

    # -- fields ------------------------------------------------------------------------------------

    def _output_tokens(self, record: Record, name: str) -> int:
        if record.values.get(name) not in (None, ""):
            return record.length(name)
        if self._spec.output_tokens is None:
            raise record.error(
                f"{name} is missing; workload.output_tokens=128 sets it where a row has none"
            )
        return self._spec.output_tokens

    def _times(self, record: Record) -> tuple[int | None, int | None]:
        """Arrival and pause, where the record has them."""
        time, pause = (
            None
            if record.values.get(self._columns[role]) is None
            else record.time_ns(self._columns[role], self._unit_ns)
            for role in ("time", "pause")
        )
        return time, pause

    def _label(self, record: Record, index: int) -> int:
        session = record.values.get(self._columns["session"])
        key: Hashable = ("record", index) if session is None else str(session)
        return self._sessions.setdefault(key, len(self._sessions))


def _message(record: Record, message: object, who: str, what: str) -> tuple[str, str]:
    """Speaker and text. A message may be a list of parts, of which those with text count, or calls
    of tools."""
    if isinstance(message, dict):
        speaker, text = message.get(who), message.get(what)
        if isinstance(text, list) and what == "content":
            text = "".join(part.get("text") or "" for part in text if isinstance(part, dict))
        if text is None and what == "content":
            text = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
        if isinstance(speaker, str) and isinstance(text, str):
            return speaker, text
    raise record.error(f"a message must be an object with the texts `{who}` and `{what}`")


def _text(record: Record, *fields: str) -> str:
    """The text of the first of these fields that a record has.

    Raises:
        TraceError: none of them holds text.
    """
    for name in fields:
        value = record.values.get(name)
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = "".join(value)
        if isinstance(value, str) and value:
            return value
    raise record.error(f"{fields[0]} must be text, got {record.values.get(fields[0])!r:.60}")


# -- tokens ----------------------------------------------------------------------------------------


class _Tokenizer(Protocol):
    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...

    def blocks(self, text: str, block_tokens: int) -> list[tuple[Hashable, int]]:
        """The text block by block: what tells a block from others, and its tokens."""
        ...


class _ByCharacters:
    def count(self, text: str) -> int:
        return -(-len(text) // CHARACTERS_PER_TOKEN)

    def blocks(self, text: str, block_tokens: int) -> list[tuple[Hashable, int]]:
        size = block_tokens * CHARACTERS_PER_TOKEN
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        return [(part, self.count(part)) for part in parts]


class _ByEncoder:
    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False)
        return ids or [0]

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def blocks(self, text: str, block_tokens: int) -> list[tuple[Hashable, int]]:
        ids = self._ids(text)
        parts = [tuple(ids[i : i + block_tokens]) for i in range(0, len(ids), block_tokens)]
        return [(part, len(part)) for part in parts]


def _tokenizer(name: str | None) -> _Tokenizer:
    if name is None:
        return _ByCharacters()
    try:
        transformers: Any = importlib.import_module("transformers")
        return _ByEncoder(transformers.AutoTokenizer.from_pretrained(name))
    except ImportError:
        raise ConfigError(
            f"workload.tokenizer {name!r} needs the package transformers; "
            "null counts four characters per token"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"workload.tokenizer {name!r} cannot be loaded: {error}") from None
