"""ShareGPT-format conversations: every answered turn is a request over the whole history.

    [{"id": "a", "conversations": [{"from": "human", "value": "..."},
                                   {"from": "gpt", "value": "..."}, ...]}, ...]

    turn 1   [ human 1 ]                         generates gpt 1
    turn 2   [ human 1 ][ gpt 1 ][ human 2 ]     generates gpt 2
              \\_______/ shared with turn 1

Each message is a segment whose content id stands for all messages up to it, so later turns share
the earlier ones, and two conversations share the messages with which both begin.
"""

import importlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from hsexp.config.base import ConfigError
from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment
from hsexp.workload.traces.source import Source, TraceRow

CHARACTERS_PER_TOKEN = 4
"""A common rule of thumb for English text, used where no tokenizer is named."""

_ASKING = frozenset({"human", "user"})
_ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
_SPACE = re.compile(r"\s*")
_LONGEST_WORD = len("-Infinity")
"""Characters of the longest word or escape that the end of a text can cut."""

_log = logging.getLogger(__name__)


def read_sharegpt(source: Source, tokenizer: str | None) -> Iterator[TraceRow]:
    """Rows of a ShareGPT-format JSON list, in the order of the file, without times.

    A request is a human message that the next message answers, both not empty; its prompt is
    every message up to it. A human message without an answer is not a request: it stays in the
    history of later turns and is counted in a log message. Any other speaker's text (a system
    prompt, say) only lengthens the history.

    Tokens are counted message by message, without a chat template: by the named tokenizer, else
    one per four characters, rounded up.

    Raises:
        TraceError: see `Source`.
        ConfigError: the tokenizer cannot be loaded.
    """
    count_tokens = _token_counter(tokenizer)
    prefixes = Prefixes()
    num_unanswered = 0
    for index, (line, conversation) in enumerate(_conversations(source)):
        messages = _messages(source, line, conversation)
        history: list[Segment] = []
        for i, (speaker, text) in enumerate(messages):
            if not text:
                continue
            parent = history[-1] if history else None
            start = parent.end_tokens if parent else 0
            end = start + count_tokens(text)
            history.append(prefixes.extend(parent, (speaker, text), end))
            if speaker not in _ASKING:
                continue
            answer_speaker, answer = messages[i + 1] if i + 1 < len(messages) else ("", "")
            if answer_speaker not in _ANSWERING or not answer:
                num_unanswered += 1
                continue
            yield TraceRow(
                line=line,
                prompt_tokens=end,
                output_tokens=count_tokens(answer),
                segments=tuple(history),
                conversation=index,
            )
    if num_unanswered:
        _log.info("%s: %d human messages have no answer", source.path, num_unanswered)


def _token_counter(tokenizer: str | None) -> Callable[[str], int]:
    if tokenizer is None:
        return lambda text: -(-len(text) // CHARACTERS_PER_TOKEN)
    try:
        transformers: Any = importlib.import_module("transformers")
        encoder = transformers.AutoTokenizer.from_pretrained(tokenizer)
    except ImportError:
        raise ConfigError(
            f"workload.tokenizer {tokenizer!r} needs the package transformers; "
            "null counts four characters per token"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"workload.tokenizer {tokenizer!r} cannot be loaded: {error}") from None
    return lambda text: max(1, len(encoder.encode(text, add_special_tokens=False)))


def _conversations(source: Source) -> Iterator[tuple[int, object]]:
    """Each element of the JSON list with the line on which it begins.

    One at a time, so that a refusal can name its line and a limit need not read the whole list.
    """
    text = _Text(source)
    if text.next_character() != "[":
        raise source.error(text.line, "expected a JSON list of conversations")
    text.skip_character()
    separator = text.next_character()
    while separator != "]":
        line = text.line
        yield line, text.value()
        separator = text.next_character()
        if separator == ",":
            text.skip_character()
            text.next_character()
        elif separator != "]":
            raise source.error(
                text.line, "broken or cut JSON: the list of conversations does not end"
            )
    text.skip_character()
    if text.next_character():
        raise source.error(text.line, "text after the list of conversations")


class _Text:
    """A JSON text from its next character on; more of the file is read when it is needed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunks = source.chunks()
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._position = 0
        self._first_line = 1
        """Line on which `_text` begins."""
        self.line = 1
        """Line of the next character."""

    def next_character(self) -> str:
        """Pass over white space. Returns the character after it; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None
            self._move(space.end())
            if self._position < len(self._text) or not self._read_on():
                return self._text[self._position : self._position + 1]

    def skip_character(self) -> None:
        self._move(self._position + 1)

    def value(self) -> object:
        """Take the JSON value that begins at the next character.

        Raises:
            TraceError: it is broken or cut.
        """
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if self._may_go_on(error) and self._read_on():
                    continue
                line = self._first_line + error.lineno - 1
                raise self._source.error(line, f"broken or cut JSON: {error.msg}") from None
            except (ValueError, RecursionError) as error:  # too many digits, too deep
                raise self._source.error(self.line, f"broken JSON: {error}") from None
            self._move(end)
            return value

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether more text could mend the value: it ends where the text does."""
        rest = self._text[error.pos :].strip()
        return len(rest) <= _LONGEST_WORD or error.msg.startswith("Unterminated string")

    def _move(self, position: int) -> None:
        self.line += self._text.count("\n", self._position, position)
        self._position = position

    def _read_on(self) -> bool:
        """Read as much again as there is, so that a long value is decoded few times. False at the
        end of the file."""
        kept = self._text[self._position :]
        news: list[str] = []
        while sum(map(len, news)) <= len(kept):
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            news.append(chunk)
        if not any(news):
            return False
        self._text, self._position, self._first_line = kept + "".join(news), 0, self.line
        return True


def _messages(source: Source, line: int, conversation: object) -> list[tuple[str, str]]:
    messages = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(messages, list):
        raise source.error(line, "a conversation must be an object with a list `conversations`")
    return [_message(source, line, message) for message in messages]


def _message(source: Source, line: int, message: object) -> tuple[str, str]:
    if isinstance(message, dict):
        speaker, text = message.get("from"), message.get("value")
        if isinstance(speaker, str) and isinstance(text, str):
            return speaker, text
    raise source.error(line, "a message must be an object with the texts `from` and `value`")
