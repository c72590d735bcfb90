"""Sends the requests of a run over HTTP, each at its planned time, whatever the server does.

The load is open: no request waits for an earlier answer, except a turn that says so
(`Request.after`), and latencies count from the planned time.
Outputs are streamed and counted by token ids, not by chunks. Every request has a connection of its
own, since a server may close an idle one.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from hsexp.workload import Request
from runners.vllm.clock import Episode, at, now_ns, seconds_until
from runners.vllm.faults import (
    ConnectionLost,
    EngineDied,
    PromptChanged,
    RequestRefused,
)
from runners.vllm.load import WARMUP_TOKENS, Load, Measured, engine_request_id
from runners.vllm.poller import Poller
from runners.vllm.process import DEATH_WAIT_S, EngineProcess
from runners.vllm.tokens import bias_to

_LEAD_S = 0.5
"""Time before second 0 in which every sender gets ready."""

_WATCH_S = 0.2
"""Period at which the engine is checked."""

_REASON_CHARACTERS = 300
"""Most characters of a server's message that a reason repeats."""

_READ_BYTES = 2**23
"""Longest line of a stream: the first one repeats the prompt."""

Running = asyncio.Future[None]

_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)


def run_load(url: str, load: Load, process: EngineProcess) -> Measured:
    """Send a load to the server at `url`.

    Raises:
        RunFault: the run gives no numbers.
    """
    return asyncio.run(_Client(url, load, process).run())


class _Client:
    """One load. Its tasks: a sender a request, a poller, and a watch over the engine."""

    def __init__(self, url: str, load: Load, process: EngineProcess) -> None:
        self._url = url
        self._load = load
        self._process = process
        self._ended = [asyncio.Event() for _ in load.streams.all]
        """Set when a request has ended, for the turn that waits for it."""
        self._bodies: list[bytes] = []
        """Bodies of the first tries, encoded before second 0."""

    async def run(self) -> Measured:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Content-Type": "application/json"},
            read_bufsize=_READ_BYTES,
        ) as session:
            self._session = session
            await self._guarded(self._warm_up())
            begin_ns = now_ns()
            self._bodies = [self._body(index, 0) for index in range(len(self._load.prompts))]
            start_ns = at(now_ns(), _LEAD_S)
            poller = Poller(self._metrics, start_ns)
            await self._guarded(self._send_all(start_ns), poller.run(), finish=poller.finish)
            return Measured(
                episode=Episode(begin_ns=begin_ns, start_ns=start_ns, end_ns=now_ns()),
                samples=poller.samples,
            )

    async def _guarded(
        self,
        work: Awaitable[None],
        background: Awaitable[None] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        """Run the work and the background task until both have ended or anything fails."""
        watch = asyncio.ensure_future(self._watch())
        main = asyncio.ensure_future(work)
        others = [] if background is None else [asyncio.ensure_future(background)]
        try:
            await _first_failure(watch, main, others)
            if finish is not None:
                finish()
            for other in others:
                await _first_failure(watch, other, [])
        finally:
            await _cancel([watch, main, *others])

    async def _watch(self) -> None:
        """Watch the engine; never returns.

        Raises:
            RunFault: the engine has ended, or makes no progress.
        """
        while True:
            self._process.raise_if_ended("serving requests", EngineDied)
            self._load.streams.require_progress(now_ns(), self._load.limits.stall_s)
            await asyncio.sleep(_WATCH_S)

    # -- requests ----------------------------------------------------------------------------------

    async def _warm_up(self) -> None:
        """Send the warm-up requests one after the other, then empty the cache."""
        for index, prompt in enumerate(self._load.warmup):
            body = _body(prompt, WARMUP_TOKENS, request_id=f"hsexp-warmup-{index}")
            async with self._session.post(f"{self._url}/v1/completions", data=body) as response:
                await self._require_success(response, f"warm-up request {index}")
                await response.read()
        async with self._session.post(f"{self._url}/reset_prefix_cache") as response:
            await self._require_success(response, "emptying the prefix cache")

    async def _send_all(self, start_ns: int) -> None:
        senders = [
            asyncio.ensure_future(self._send(index, stream.request, start_ns))
            for index, stream in enumerate(self._load.streams.all)
        ]
        try:
            await asyncio.gather(*senders)
        finally:
            await _cancel(senders)

    async def _send(self, index: int, request: Request, start_ns: int) -> None:
        """Send one request, and retry it after a lost connection."""
        streams, num_tries = self._load.streams, self._load.max_retries + 1
        if (before := streams.before(index)) is not None:
            await self._ended[before].wait()
        await asyncio.sleep(max(0.0, seconds_until(streams.planned_ns(index, start_ns))))
        for retry in range(num_tries):
            streams.sent(index, now_ns())
            try:
                await self._stream(index, self._body(index, retry))
            except _BROKEN as error:
                streams.lost(index)
                reason = f"{type(error).__name__}: {error}"
                await asyncio.sleep(2 * _WATCH_S)  # a dead engine is the watch's to report
            else:
                streams.finished(index)
                self._ended[index].set()
                return
        await asyncio.sleep(DEATH_WAIT_S)
        raise ConnectionLost(
            f"request {request.request_id} lost {num_tries} connections, the last: {reason}"
        )

    async def _stream(self, index: int, body: bytes) -> None:
        """Read one answer to its end."""
        prompt = self._load.prompts[index]
        what = f"request {self._load.streams.all[index].request.request_id}"
        computed: Any = None
        async with self._session.post(f"{self._url}/v1/completions", data=body) as response:
            await self._require_success(response, what)
            async for line in response.content:
                stamp_ns = now_ns()
                if not line.startswith(b"data: "):
                    continue
                text = line[len(b"data: ") :].strip()
                if text == b"[DONE]":
                    break
                message = json.loads(text)
                if "error" in message:
                    await self._refuse(f"{what}: {_error_text(message)}", dying=True)
                for choice in message["choices"]:
                    computed = computed or choice.get("prompt_token_ids")
                    self._load.streams.arrived(index, stamp_ns, choice.get("token_ids") or ())
            else:
                raise ConnectionResetError("the stream ended before its end mark")
        if computed != prompt:
            raise PromptChanged(
                f"{what}: {len(prompt)} tokens were sent, and the engine "
                + ("computed others" if computed else "does not report what it computed")
            )

    async def _require_success(self, response: aiohttp.ClientResponse, what: str) -> None:
        if response.status != 200:
            text = await response.text()
            try:
                reason = _error_text(json.loads(text))
            except ValueError:
                reason = text.strip()[:_REASON_CHARACTERS]
            await self._refuse(
                f"{what}: HTTP {response.status}: {reason}", dying=response.status >= 500
            )

    async def _refuse(self, message: str, *, dying: bool) -> None:
        """Raise RequestRefused, unless an engine that may be dying does so in time."""
        if dying:
            await asyncio.sleep(DEATH_WAIT_S)  # a dead engine is the watch's to report
        raise RequestRefused(message)

    async def _metrics(self) -> str:
        try:
            async with self._session.get(f"{self._url}/metrics") as response:
                await self._require_success(response, "/metrics")
                text: str = await response.text()
                return text
        except _BROKEN as error:
            await asyncio.sleep(DEATH_WAIT_S)  # a dead engine is the watch's to report
            raise ConnectionLost(f"/metrics: {type(error).__name__}: {error}") from None

    def _body(self, index: int, retry: int) -> bytes:
        if not retry and self._bodies:
            return self._bodies[index]
        stream = self._load.streams.all[index]
        return _body(
            self._load.prompts[index],
            stream.request.output_tokens,
            request_id=engine_request_id(index, retry),
            salt=stream.request.cache_salt,
            only_token=stream.only_token,
        )


def _body(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    request_id: str,
    salt: str | None = None,
    only_token: int | None = None,
) -> bytes:
    body: dict[str, Any] = {
        "model": "hsexp",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "return_token_ids": True,
        "request_id": request_id,
    }
    if salt is not None:
        body["cache_salt"] = salt
    if only_token is not None:
        body["logit_bias"] = {str(token): bias for token, bias in bias_to(only_token).items()}
    return json.dumps(body).encode()


def _error_text(message: Any) -> str:
    error = message.get("error", message)
    text = str(error.get("message", error) if isinstance(error, dict) else error)
    return " ".join(text.split())[:_REASON_CHARACTERS]


async def _first_failure(watch: Running, main: Running, others: Sequence[Running]) -> None:
    """Wait for `main`; what the watch or the others raise comes first."""
    await asyncio.wait([watch, main, *others], return_when=asyncio.FIRST_COMPLETED)
    for task in (watch, *others, main):
        if task.done():
            task.result()


async def _cancel(tasks: Sequence[Running]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
