"""ShareGPT conversations: each answered turn is a request that shares the turns before it."""

import json
import logging
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from hsexp.config.base import ConfigError
from hsexp.workload import Request, TraceError, Workload
from hsexp.workload.traces import source

TraceLoader = Callable[..., Workload]

Turns = list[tuple[str, str]]


def dump(*conversations: Turns) -> str:
    return json.dumps(
        [
            {"id": str(i), "conversations": [{"from": who, "value": text} for who, text in turns]}
            for i, turns in enumerate(conversations)
        ],
        indent=1,
    )


def text(character: str, tokens: int) -> str:
    return character * (4 * tokens)


THREE_TURNS: Turns = [
    ("human", text("a", 10)),
    ("gpt", text("b", 20)),
    ("human", text("c", 5)),
    ("gpt", text("d", 7)),
    ("human", text("e", 1)),
    ("gpt", text("f", 2)),
]
ONE_TURN: Turns = [("human", text("x", 3)), ("gpt", text("y", 4))]


def shared_tokens(one: Request, other: Request) -> int:
    ends = {segment.content_id: segment.end_tokens for segment in one.segments}
    return max((s.end_tokens for s in other.segments if s.content_id in ends), default=0)


def test_every_turn_is_a_request_over_the_history(load: TraceLoader) -> None:
    requests = load("s.json", dump(THREE_TURNS)).requests
    # 10; 10 + 20 + 5; 35 + 7 + 1
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(10, 20), (35, 7), (43, 2)]


def test_later_turns_share_all_the_earlier_ones(load: TraceLoader) -> None:
    # A loader that kept two messages a conversation could never show any reuse.
    first, second, third = load("s.json", dump(THREE_TURNS)).requests
    assert shared_tokens(first, second) == 10
    assert shared_tokens(first, third) == 10
    assert shared_tokens(second, third) == 35


def test_conversations_share_the_messages_with_which_both_begin(load: TraceLoader) -> None:
    system = ("system", text("s", 8))
    requests = load("s.json", dump([system, *ONE_TURN], [system, *THREE_TURNS[:2]])).requests
    assert shared_tokens(*requests) == 8


def test_equal_texts_after_other_texts_are_not_shared(load: TraceLoader) -> None:
    one: Turns = [("system", text("s", 8)), *ONE_TURN]
    other: Turns = [("system", text("t", 8)), *ONE_TURN]
    assert shared_tokens(*load("s.json", dump(one, other)).requests) == 0


def test_a_human_turn_without_an_answer_only_lengthens_the_history(
    load: TraceLoader, caplog: pytest.LogCaptureFixture
) -> None:
    turns: Turns = [("human", text("a", 1)), ("human", text("b", 2)), ("gpt", text("c", 3))]
    unanswered: Turns = [("human", text("d", 1)), ("gpt", "")]
    with caplog.at_level(logging.INFO):
        (request,) = load("s.json", dump(turns, unanswered)).requests
    assert (request.prompt_tokens, request.output_tokens) == (3, 3)
    assert "2 human messages have no answer" in caplog.text


def test_four_characters_are_a_token_and_a_rest_counts_whole(load: TraceLoader) -> None:
    (request,) = load("s.json", dump([("human", "12345"), ("gpt", "1")])).requests
    assert (request.prompt_tokens, request.output_tokens) == (2, 1)


def test_turns_keep_their_order_while_conversations_mix(load: TraceLoader) -> None:
    conversations: list[Turns] = [
        [(who, f"{i:03}{t}") for t in range(4) for who in ("human", "gpt")] for i in range(20)
    ]
    workload = load("s.json", dump(*conversations))
    last_depth: dict[int, int] = {}
    order = []
    for request in workload.requests:
        root = request.segments[0].content_id
        assert len(request.segments) == last_depth.get(root, -1) + 2
        last_depth[root] = len(request.segments)
        order.append(root)
    assert list(last_depth.values()) == [7] * 20  # four turns: 1, 3, 5, 7 messages
    assert order != sorted(order)


def test_the_seed_alone_decides_mixture_and_arrivals(load: TraceLoader) -> None:
    file = dump(*([THREE_TURNS, ONE_TURN] * 5))
    assert load("s.json", file, seed=3).digest == load("s.json", file, seed=3).digest
    assert load("s.json", file, seed=3).digest != load("s.json", file, seed=4).digest


def test_arrivals_are_drawn(load: TraceLoader) -> None:
    workload = load("s.json", dump(THREE_TURNS, ONE_TURN))
    assert workload.requests[-1].arrival_s == 2.0  # four requests at 2 per second


def test_a_limit_takes_the_first_turns_and_does_not_read_on(load: TraceLoader) -> None:
    cut = dump(THREE_TURNS, ONE_TURN)[:-40]
    assert len(load("s.json", cut, max_requests=2).requests) == 2


def test_a_limit_reads_no_further_than_its_turns(load: TraceLoader, tmp_path: Path) -> None:
    # One line of 17 MB.
    one = json.dumps({"conversations": [{"from": who, "value": say} for who, say in ONE_TURN]})
    (tmp_path / "long.json").write_text(f"[{', '.join([one] * 150_000)}]")
    tracemalloc.start()
    try:
        assert len(load("long.json", None, max_requests=2).requests) == 2
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * 2**20


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7])
def test_a_list_reads_alike_wherever_its_chunks_end(
    load: TraceLoader, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    strange: Turns = [("human", "é\n\u2028\\ 😀"), ("gpt", '"]}, -1.5e3')]
    whole = f"\n{dump(THREE_TURNS, strange, ONE_TURN)} \n".replace(r"\ud83d\ude00", "😀")
    expected = load("s.json", whole)
    monkeypatch.setattr(source, "_CHUNK_BYTES", chunk_bytes)
    assert load("s.json", whole).digest == expected.digest
    for broken in (whole + "x", whole.replace("😀", "😀\t"), whole.replace('"from"', "from", 3)):
        with pytest.raises(TraceError) as in_chunks:
            load("s.json", broken)
        monkeypatch.undo()
        with pytest.raises(TraceError) as at_once:
            load("s.json", broken)
        monkeypatch.setattr(source, "_CHUNK_BYTES", chunk_bytes)
        assert str(in_chunks.value) == str(at_once.value)


@pytest.mark.parametrize(
    "turns",
    [[], [("gpt", "hello")], [("human", "hello")], [("human", ""), ("gpt", "hi")]],
    ids=["no message", "no human", "no answer", "empty question"],
)
def test_conversations_that_ask_for_nothing_leave_no_workload(
    load: TraceLoader, turns: Turns
) -> None:
    # A filter that left nothing made a driver search for ever.
    with pytest.raises(TraceError, match="no requests in this sharegpt trace"):
        load("s.json", dump(turns))


def test_every_cut_of_the_list_is_refused(load: TraceLoader) -> None:
    whole = dump(THREE_TURNS, ONE_TURN)
    for length in range(1, len(whole)):
        with pytest.raises(TraceError, match="broken or cut JSON") as refusal:
            load("s.json", whole[:length])
        assert refusal.value.line == whole[:length].count("\n") + 1


@pytest.mark.parametrize(
    ("file", "line", "reason"),
    [
        ("", 1, "the file is empty"),
        ("\n{}", 2, "expected a JSON list of conversations"),
        ("[]", None, "no requests"),
        ("[] []", 1, "text after the list of conversations"),
        ("[\n1]", 2, "a conversation must be an object with a list `conversations`"),
        ('[\n\n{"id": 1}]', 3, "a conversation must be an object with a list `conversations`"),
        ('[{"conversations": [{}]}]', 1, "a message must be an object with the texts"),
        ('[{"conversations":\n [{"from": "human", "value": 1}]}]', 1, "a message must be"),
        ('[{"conversations": []},\n{"conversations": [3]}]', 2, "a message must be"),
        ('[{"conversations": []}\n{}]', 2, "broken or cut JSON"),
        ('[{"conversations": []},\n]', 2, "broken or cut JSON"),
        ("[\n" + "[" * 100_000, 2, "broken JSON: maximum recursion depth"),
        ("[\n" + "9" * 5_000 + "]", 2, "broken JSON"),
        (b'[{"conversations": []},\n"\xff"]', 2, "not UTF-8 text"),
    ],
)
def test_a_bad_list_is_refused_with_file_line_and_reason(
    load: TraceLoader, file: str | bytes, line: int | None, reason: str
) -> None:
    with pytest.raises(TraceError, match=reason) as refusal:
        load("s.json", file)
    assert refusal.value.line == line
    assert "s.json" in str(refusal.value)


def test_a_tokenizer_without_its_package_is_refused(
    load: TraceLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"workload\.tokenizer 'bert' needs .* transformers"):
        load("s.json", dump(ONE_TURN), tokenizer="bert")


def test_a_tokenizer_that_does_not_exist_is_refused(load: TraceLoader, tmp_path: object) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=r"workload\.tokenizer .* cannot be loaded"):
        load("s.json", dump(ONE_TURN), tokenizer=f"{tmp_path}/none")


def test_a_named_tokenizer_counts_the_tokens(load: TraceLoader, tmp_path: object) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    saved = f"{tmp_path}/words"
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(
        saved
    )
    turns: Turns = [("human", "one two three"), ("gpt", "four five")]
    (request,) = load("s.json", dump(turns), tokenizer=saved).requests
    assert (request.prompt_tokens, request.output_tokens) == (3, 2)
