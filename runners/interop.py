"""python -m runners.interop import=RESULT.json ledger=DIR device=NAME
python -m runners.interop export=ATTEMPT ledger=DIR out=RESULT.json

Results of `vllm bench serve --save-result --save-detailed` as attempts of a ledger, and attempts as
such results (vLLM 0.27.1, vllm/benchmarks/serve.py). A cell of an imported result has as axes, and
is named by, the benchmark's settings and the KEY=VALUE pairs of --metadata, so that
`--metadata organization=s2 seed=1` makes these two axes.

Unknown values stay unknown. The benchmark keeps the time at which a request was sent, but not its
planned time, the engine's steps or token ids; a ledger keeps no gaps between single tokens. An
exported attempt has fields that the benchmark lacks (`e2els`, `statuses`, `data_kind`,
`device`, `latencies_from`), so that it can be imported with the same numbers.
"""

import hsexp.starting  # noqa: F401, I001

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hsexp.config.base import ConfigError
from hsexp.console import make_console
from hsexp.ending import end_well
from hsexp.ledger import (
    Attempt,
    EngineFacts,
    Ledger,
    LedgerError,
    Provenance,
    encode_table,
    is_simulated,
)
from hsexp.ledger.provenance import Host
from hsexp.measure.metrics import Metric, summarize
from hsexp.measure.records import RunRecord
from hsexp.plan.cells import Cell, content_key

CAMPAIGN = "bench_serve"
CONTRACT = {"campaign": CAMPAIGN, "source": "vllm bench serve"}

_PER_REQUEST = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")
"""Lists that --save-detailed keeps."""

_BACKENDS = ("vllm", "openai", "openai-chat", "openai-audio")
"""Ways in which the benchmark asks a server of vLLM for tokens; others ask for embeddings, or other
servers."""

_TOTALS = ("date", "duration", "completed", "failed")

_SETTINGS = (
    "backend",
    "label",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
)
"""Settings of the benchmark."""

_NO_SETTINGS = (
    *(*_TOTALS, "endpoint_type", "tokenizer_id"),
    *("data_kind", "device", "latencies_from"),
)
"""Other plain fields that are not KEY=VALUE pairs of --metadata."""

_MEASURES = (
    "throughput",
    "_ms",
    "total_",
    "max_",
    "request_goodput",
    "rtfx",
    "spec_decode",
    "probe_",
)

_DISTRIBUTIONS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
"""The ledger's name of each latency, by the benchmark's."""

_PLANNED = "planned arrivals"
"""Where the latencies of an exported attempt start; the benchmark's start at sending."""

_STATUSES = ("finished", "refused", "unfinished")


def import_result(result: Mapping[str, Any], ledger: Ledger, *, device: str) -> str:
    """Record a result as an attempt. Returns the attempt's id.

    Args:
        device: the device that the server ran on, which the result does not contain.

    Raises:
        ConfigError: the result has no detail, contradicts itself or was simulated; names the
            field.
    """
    missing = [name for name in (*_PER_REQUEST, *_TOTALS) if name not in result]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} missing: `vllm bench serve` keeps them with --save-detailed"
        )
    _check_kind(result, device)
    record = to_record(result)
    _check_totals(result, record.requests)
    settings = _settings(result)
    cell = Cell(
        campaign=CAMPAIGN,
        block=CAMPAIGN,
        axes=settings,
        config=settings,
        cell_id=content_key(settings),
        pair_id=content_key(
            {name: value for name, value in settings.items() if name != "organization"}
        ),
    )
    lengths = json.dumps(result["input_lens"]).encode()
    attempt = Attempt(
        cell=cell,
        status="ok",
        reason=None,
        metrics=_metrics(result, record),
        workload_digest=hashlib.sha256(lengths).hexdigest(),
        engine=EngineFacts(
            engine="vllm",
            device=device,
            time_model="wall clock",
            data_kind="measured",
            observed={"imported_from": "vllm bench serve", "latencies_from": _origin(result)},
        ),
        provenance=Provenance(
            code_version="unknown",
            versions={},
            host=Host(cpu=None, num_cores=None, platform="unknown"),
        ),
        started_at=_date(result["date"]),
        wall_s=result["duration"],
    )
    return ledger.record(attempt, requests=encode_table(record.requests))


def _check_kind(result: Mapping[str, Any], device: str) -> None:
    """Check that the result is a measurement of vLLM on the device.

    Raises:
        ConfigError: it was simulated, or it is of another server or device; names the field.
    """
    of_simulation: Mapping[str, Callable[[object], bool]] = {
        "backend": partial(eq, "sim"),
        "endpoint_type": partial(eq, "sim"),
        "data_kind": is_simulated,
    }
    for name, says_so in of_simulation.items():
        value = result.get(name)
        if says_so(value):
            raise ConfigError(
                f"{name} is {value}: a simulated run is not imported as a measured one"
            )
    expected: tuple[tuple[str, tuple[str | None, ...]], ...] = (
        ("backend", _BACKENDS),
        ("endpoint_type", (*_BACKENDS, None)),
        ("data_kind", ("measured", None)),
        ("device", (device, None)),
    )
    for field, known in expected:
        found = result.get(field)
        if found not in known:
            spelled = " or ".join(each for each in known if each is not None)
            raise ConfigError(f"{field} must be {spelled}, got {found!r}")


def to_record(result: Mapping[str, Any]) -> RunRecord:
    """The record of a result: its requests, without the engine's steps.

    The arrival of a request is the time at which it was sent, counted from the first one. A request
    without a first token has not finished, whatever its error says.

    Raises:
        ConfigError: a list is too short, a value is not a number, or the end of a request is
            unknown.
    """
    _check_lists(result)
    start = min(result["start_times"], default=0.0)
    rows, gaps = [], []
    for index in range(len(result["errors"])):
        status, reason = _outcome(result, index)
        sent_s = result["start_times"][index] - start
        row: dict[str, Any] = {
            "request_id": index,
            "status": status,
            "reason": reason,
            "prompt_tokens": result["input_lens"][index],
            "generated_tokens": result["output_lens"][index],
            "arrival_s": sent_s,
            "first_token_s": math.nan,
            "finish_s": math.nan,
        }
        if status == "finished":
            row["first_token_s"] = sent_s + result["ttfts"][index]
            row["finish_s"] = sent_s + _end_to_end_s(result, index)
            gaps += _gaps_by_tokens(result["itls"][index] or [], result["output_lens"][index])
        rows.append(row)
    return RunRecord(
        requests=pd.DataFrame(rows),
        steps=pd.DataFrame(),
        token_gaps_s=np.array(gaps if _has_all_gaps(result) else [], dtype=np.float64),
    )


def _check_lists(result: Mapping[str, Any]) -> None:
    for name in ("errors", *_PER_REQUEST, "e2els", "statuses"):
        if name in result and not isinstance(result[name], list):
            raise ConfigError(f"{name} must be a list, got {result[name]!r}")
        if name in result and len(result[name]) != len(result["errors"]):
            raise ConfigError(
                f"{name} must have one entry for each of the {len(result['errors'])} errors, "
                f"got {len(result[name])}"
            )
    for name in ("input_lens", "output_lens", "start_times"):
        for index, value in enumerate(result[name]):
            if not _is_number(value):
                raise ConfigError(f"{name}[{index}] must be a number, got {value!r}")
            if name != "start_times" and (value < 0 or value != int(value)):
                raise ConfigError(f"{name}[{index}] must be a whole number, got {value!r}")
    for index, gaps in enumerate(result["itls"]):
        if gaps is not None and not (isinstance(gaps, list) and all(map(_is_number, gaps))):
            raise ConfigError(f"itls[{index}] must be a list of numbers or null, got {gaps!r}")


def _outcome(result: Mapping[str, Any], index: int) -> tuple[str, str | None]:
    """Status of a request, and why it has not finished.

    The benchmark does not say which requests succeeded: a failure may have an empty text, and an
    answer may come without any token. Both have no time to a first token.
    """
    error, ttft_s = result["errors"][index], result["ttfts"][index]
    has_first_token = _is_number(ttft_s) and ttft_s > 0.0
    is_done = has_first_token and not error
    status = "finished" if is_done else "unfinished"
    if "statuses" in result:
        status = result["statuses"][index]
    if status not in _STATUSES or (status == "finished") != is_done:
        token = "a first token" if has_first_token else "no first token"
        raise ConfigError(
            f"statuses[{index}] is {status!r}, but request {index} has {token} "
            + (f"and the error {error!r}" if error else "and no error")
        )
    return status, None if is_done else error or "no first token and no error"


def _end_to_end_s(result: Mapping[str, Any], index: int) -> float:
    """Time from sending a finished request to its last token."""
    if "e2els" in result:
        latency_s = result["e2els"][index]
        if not _is_number(latency_s):
            raise ConfigError(f"e2els[{index}] must be a number, got {latency_s!r}")
        return float(latency_s)
    itls = result["itls"][index]
    if itls is None and result["output_lens"][index] > 1:
        raise ConfigError(
            f"the end of request {index} is unknown: itls[{index}] is null and there are no e2els"
        )
    return float(result["ttfts"][index] + sum(itls or []))


def _has_all_gaps(result: Mapping[str, Any]) -> bool:
    """Whether the result has the gaps between all output tokens."""
    return all(
        itls is not None or tokens <= 1
        for itls, tokens in zip(result["itls"], result["output_lens"], strict=True)
    )


def _check_totals(result: Mapping[str, Any], requests: pd.DataFrame) -> None:
    """Check that the benchmark's counts agree with its lists.

    Raises:
        ConfigError: they do not; names the count.
    """
    for name in ("duration", "completed", "failed"):
        if not _is_number(result[name]):
            raise ConfigError(f"{name} must be a number, got {result[name]!r}")
    completed, failed = result["completed"], result["failed"]
    if completed + failed != len(requests):
        raise ConfigError(
            f"completed {completed} and failed {failed} must add up to the {len(requests)} requests"
        )
    finished = int((requests["status"] == "finished").sum())
    # The benchmark may count an answer without a token as completed.
    silent = sum(not error for error in result["errors"]) - finished
    if not finished <= completed <= finished + silent:
        allowed = str(finished) if silent == 0 else f"{finished} to {finished + silent}"
        raise ConfigError(f"completed must be {allowed} by errors and ttfts, got {completed}")


def _metrics(result: Mapping[str, Any], record: RunRecord) -> dict[str, Metric]:
    """Metrics of the record, None where the result cannot give them.

    Raises:
        ConfigError: the times of a request are out of order.
    """
    try:
        metrics = summarize(record)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    # One of the two is known: when requests were planned, or when they were sent.
    unknown = "realised_rate_per_s" if _origin(result) == _PLANNED else "planned_rate_per_s"
    metrics[unknown] = None
    if metrics["num_unfinished"]:
        metrics["o_ctr_tokens"] = None  # tokens of a failed request are unknown
    if not _has_all_gaps(result):
        for theirs, ours in (("mean", "mean"), ("median", "p50"), ("p99", "p99")):
            value: Any = result.get(f"{theirs}_itl_ms")
            metrics[f"itl_{ours}_s"] = value / 1e3 if _is_number(value) else None
    return metrics


def _origin(result: Mapping[str, Any]) -> str:
    return str(result.get("latencies_from", "sending"))


def export_attempt(ledger: Ledger, attempt_id: str) -> dict[str, Any]:
    """An attempt in the form of `vllm bench serve --save-result --save-detailed`.

    Times count from the planned arrivals. `itls` is null, because the ledger keeps no single gaps;
    `e2els` gives when each request ended, and `statuses` how.

    Raises:
        LedgerError: there is no such attempt, or it failed.
    """
    attempts = ledger.attempts().set_index("attempt_id", drop=False)
    if attempt_id not in attempts.index or attempts["status"][attempt_id] != "ok":
        raise LedgerError(f"{ledger.path}: no ok attempt is called {attempt_id!r}")
    row: dict[str, Any] = dict(attempts.loc[attempt_id])
    table = ledger.request_table(attempt_id)
    done = (table["status"] == "finished").to_numpy(dtype=bool)
    tokens = table["generated_tokens"].where(done, 0)
    ttfts = (table["first_token_s"] - table["arrival_s"]).where(done, 0.0)
    e2e = (table["finish_s"] - table["arrival_s"])[done]
    later = (tokens > 1) & done
    tpot = ((table["finish_s"] - table["first_token_s"])[later]) / (tokens[later] - 1)
    samples = {"ttft": ttfts[done], "tpot": tpot, "e2el": e2e}
    span, total_in = row["span_s"], int(table["prompt_tokens"][done].sum())
    return {
        "date": datetime.fromisoformat(row["started_at"]).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": row["engine"],
        "backend": row["engine"],
        "label": attempt_id,
        "model_id": _model_of(row),
        "tokenizer_id": None,
        "num_prompts": len(table),
        "request_rate": _known(row.get("rate_per_s", row.get("request_rate"))),
        "burstiness": _burstiness(row),
        "max_concurrency": None,
        **{name: _known(row[name]) for name in ("organization", "budget", "seed") if name in row},
        "duration": _known(span),
        "completed": int(done.sum()),
        "failed": int((~done).sum()),
        "total_input_tokens": total_in,
        "total_output_tokens": int(tokens.sum()),
        "request_throughput": _known(row["requests_per_s"]),
        "request_goodput": None,
        "output_throughput": _known(row["throughput_tok_per_s"]),
        "total_token_throughput": _rate(total_in + int(tokens.sum()), span),
        "input_lens": table["prompt_tokens"].tolist(),
        "output_lens": tokens.tolist(),
        "ttfts": ttfts.tolist(),
        "itls": [None] * len(table),
        "e2els": [_known(value) for value in (table["finish_s"] - table["arrival_s"]).where(done)],
        "start_times": table["arrival_s"].tolist(),
        "generated_texts": [""] * len(table),
        "errors": [
            "" if is_done else str(status if pd.isna(reason) else reason)
            for is_done, status, reason in zip(done, table["status"], table["reason"], strict=True)
        ],
        "statuses": table["status"].tolist(),
        "data_kind": row["data_kind"],
        "device": row["device"],
        "latencies_from": json.loads(row["engine_facts"]).get("latencies_from", _PLANNED),
        **_distribution_fields(row, samples),
    }


def main(arguments: Sequence[str]) -> None:
    """Run the command line.

    Raises:
        ConfigError: the arguments or the result are refused.
        LedgerError: the ledger or the attempt is refused.
        OSError: a file cannot be read or written.
    """
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    console = make_console()
    match sorted(given):
        case ["device", "import", "ledger"]:
            result = _read(Path(given["import"]))
            ledger = Ledger.open(given["ledger"], contract=CONTRACT)
            console.print(f"recorded: {import_result(result, ledger, device=given['device'])}")
        case ["export", "ledger", "out"]:
            exported = export_attempt(Ledger.read(given["ledger"]), given["export"])
            Path(given["out"]).write_text(json.dumps(exported), encoding="utf-8")
            console.print(f"written: {given['out']}")
        case _:
            raise ConfigError((__doc__ or "").partition("\n\n")[0])


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not one JSON result: {error}") from None
    if not isinstance(result, dict):
        raise ConfigError(f"{path} is not one JSON result: it holds a {type(result).__name__}")
    return result


def _date(text: str) -> str:
    try:
        return datetime.strptime(text, "%Y%m%d-%H%M%S").isoformat()
    except (TypeError, ValueError):
        raise ConfigError(f"date must be like 20261129-203000, got {text!r}") from None


def _settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that name the cell: those of the benchmark and the pairs of --metadata."""
    pairs = {
        name: value
        for name, value in result.items()
        if isinstance(value, str | int | float)
        and name not in (*_SETTINGS, *_NO_SETTINGS)
        and not any(part in name for part in _MEASURES)
    }
    settings = {name: result.get(name) for name in _SETTINGS} | pairs
    for name, value in settings.items():
        if value is not None and not isinstance(value, str) and not _is_number(value):
            raise ConfigError(f"{name} must be a text or a number, got {value!r}")
    return settings


def _gaps_by_tokens(itls: Sequence[float], tokens: int) -> list[float]:
    """The benchmark keeps gaps between chunks; tokens of a chunk share them equally."""
    if len(itls) == tokens - 1 or tokens < 2:
        return list(itls)
    return [sum(itls) / (tokens - 1)] * (tokens - 1)


def _distribution_fields(
    row: Mapping[str, Any], samples: Mapping[str, "pd.Series[float]"]
) -> dict[str, Metric]:
    fields: dict[str, Metric] = {}
    for theirs, ours in _DISTRIBUTIONS.items():
        values = {
            "mean": row[f"{ours}_mean_s"],
            "median": row[f"{ours}_p50_s"],
            "std": float(samples[theirs].std(ddof=0)) if theirs in samples else None,
            "p99": row[f"{ours}_p99_s"],
        }
        fields |= {f"{name}_{theirs}_ms": _known(value, 1e3) for name, value in values.items()}
    return fields


def _model_of(row: Mapping[str, Any]) -> str | None:
    name: str | None = _config_of(row).get("model", {}).get("name")
    return name


def _burstiness(row: Mapping[str, Any]) -> float | None:
    """Shape of the gaps' distribution; 1 is exponential. None where the gaps are not drawn."""
    if "burstiness" in row:
        known: float | None = _known(row["burstiness"])
        return known
    arrivals = _config_of(row).get("arrivals") or {}
    return 1.0 if arrivals.get("kind") in ("poisson", "poisson_drawn") else None


def _config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration of a measured run, as far as it is known."""
    config: dict[str, Any] = json.loads(row["engine_facts"]).get("config", {})
    return config


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _known(value: Any, factor: float | None = None) -> Any:
    """A plain value, or None where it is unknown."""
    if value is None or pd.isna(value):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if factor is None else plain * factor


def _rate(count: int, span_s: float) -> float | None:
    return count / span_s if span_s > 0.0 else None


if __name__ == "__main__":
    sys.exit(end_well(lambda: main(sys.argv[1:]), ConfigError, LedgerError, OSError))
