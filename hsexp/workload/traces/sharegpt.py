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
from hsexp.workload.request import Segment
from hsexp.workload.traces.prefixes import Prefixes
from hsexp.workload.traces.source import Source, TraceRow

CHARACTERS_PER_TOKEN = 4
"""A common rule of thumb for English text, used where no tokenizer is named."""

_ASKING = frozenset({"human", "user"})
_ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
_SPACE = re.compile(r"\s*")

_log = logging.getLogger(__name__)


def read_sharegpt(source: Source, limit: int | None, tokenizer: str | None) -> list[TraceRow]:
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
    rows: list[TraceRow] = []
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
            rows.append(
                TraceRow(
                    prompt_tokens=end,
                    output_tokens=count_tokens(answer),
                    segments=tuple(history),
                    conversation=index,
                )
            )
            if len(rows) == limit:
                return rows
    if num_unanswered:
        _log.info("%s: %d human messages have no answer", source.path, num_unanswered)
    return rows


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
    text = source.text
    decoder = json.JSONDecoder()
    position, line = _skip_space(text, 0, 1)
    if text[position] != "[":
        raise source.error(line, "expected a JSON list of conversations")
    position, line = _skip_space(text, position + 1, line)
    separator = text[position : position + 1]
    while separator != "]":
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise source.error(error.lineno, f"broken or cut JSON: {error.msg}") from None
        yield line, value
        position, line = _skip_space(text, end, line + text.count("\n", position, end))
        separator = text[position : position + 1]
        if separator == ",":
            position, line = _skip_space(text, position + 1, line)
        elif separator != "]":
            raise source.error(line, "broken or cut JSON: the list of conversations does not end")
    if text[position + 1 :].strip():
        raise source.error(line, "text after the list of conversations")


def _skip_space(text: str, position: int, line: int) -> tuple[int, int]:
    """The next position that is not white space, and its line."""
    space = _SPACE.match(text, position)
    assert space is not None
    return space.end(), line + space.group().count("\n")


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
