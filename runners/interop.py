"""python -m runners.interop import=RESULT.json ledger=DIR device=NAME
python -m runners.interop export=ATTEMPT ledger=DIR out=RESULT.json

Results of `vllm bench serve --save-result --save-detailed` as attempts of a ledger, and attempts as
such results (vLLM 0.27.1, vllm/benchmarks/serve.py). A cell of an imported result is named by what
the benchmark was told; its axes are those settings and the KEY=VALUE pairs of --metadata, so that
`--metadata organization=s2 seed=1` makes them axes.

What the other side does not know stays unknown. The benchmark keeps when a request was really sent,
not when it was planned, nothing of the engine's steps, and no token ids; a ledger keeps no gap
between single tokens.
"""

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hsexp.config.base import ConfigError
from hsexp.console import make_console
from hsexp.ledger import Attempt, EngineFacts, Ledger, LedgerError, Provenance, encode_table
from hsexp.ledger.provenance import Host
from hsexp.measure.metrics import Metric, summarize
from hsexp.measure.records import RunRecord
from hsexp.plan.cells import Cell, content_key

CAMPAIGN = "bench_serve"
CONTRACT = {"campaign": CAMPAIGN, "source": "vllm bench serve"}

_PER_REQUEST = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")
"""Lists that --save-detailed keeps."""

_SETTINGS = (
    "backend",
    "label",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
)
"""What the benchmark was told."""

_NO_SETTINGS = ("date", "endpoint_type", "tokenizer_id", "duration", "completed", "failed")
"""Other plain fields that are no KEY=VALUE pairs of --metadata."""

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
"""The benchmark's name of a latency: ours."""


def import_result(result: Mapping[str, Any], ledger: Ledger, *, device: str) -> str:
    """Record a result as an attempt. Returns the attempt's id.

    Args:
        device: what the server ran on; the result does not say.

    Raises:
        ConfigError: the result has no detail; the missing field is named.
    """
    missing = [name for name in _PER_REQUEST if name not in result]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} missing: `vllm bench serve` keeps them with --save-detailed"
        )
    record = to_record(result)
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
        metrics=summarize(record) | {"planned_rate_per_s": None},
        workload_digest=hashlib.sha256(lengths).hexdigest(),
        engine=EngineFacts(
            engine="vllm",
            device=device,
            time_model="wall clock",
            data_kind="measured",
            observed={"imported_from": "vllm bench serve", "latencies_from": "sending"},
        ),
        provenance=Provenance(
            code_version="unknown",
            versions={},
            host=Host(cpu=None, num_cores=None, platform="unknown"),
        ),
        started_at=datetime.strptime(result["date"], "%Y%m%d-%H%M%S").isoformat(),
        wall_s=result["duration"],
    )
    return ledger.record(attempt, requests=encode_table(record.requests))


def to_record(result: Mapping[str, Any]) -> RunRecord:
    """The requests of a result; what the engine did is absent.

    The arrival of a request is the time at which it was sent, after the first one.
    """
    start = min(result["start_times"], default=0.0)
    rows, gaps = [], []
    for index, error in enumerate(result["errors"]):
        sent_s = result["start_times"][index] - start
        itls, tokens = result["itls"][index] or [], result["output_lens"][index]
        first_s = sent_s + result["ttfts"][index]
        row: dict[str, Any] = {
            "request_id": index,
            "status": "unfinished" if error else "finished",
            "reason": error or None,
            "prompt_tokens": result["input_lens"][index],
            "generated_tokens": tokens,
            "arrival_s": sent_s,
            "first_token_s": math.nan if error else first_s,
            "finish_s": math.nan if error else first_s + sum(itls),
        }
        rows.append(row)
        if not error:
            gaps += _gaps_by_tokens(itls, tokens)
    return RunRecord(
        requests=pd.DataFrame(rows),
        steps=pd.DataFrame(),
        token_gaps_s=np.array(gaps, dtype=np.float64),
    )


def export_attempt(ledger: Ledger, attempt_id: str) -> dict[str, Any]:
    """An attempt in the form of `vllm bench serve --save-result --save-detailed`.

    Times count from the planned arrivals. `itls` is null: the ledger keeps no single gap.

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
        "request_rate": _known(row.get("rate_per_s")),
        "burstiness": 1.0,
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
        "start_times": table["arrival_s"].tolist(),
        "generated_texts": [""] * len(table),
        "errors": ["" if pd.isna(reason) else str(reason) for reason in table["reason"]],
        **_distribution_fields(row, samples),
    }


def main(arguments: Sequence[str]) -> None:
    """Carry out the command line.

    Raises:
        ConfigError, LedgerError, OSError: what is refused.
    """
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    console = make_console()
    match sorted(given):
        case ["device", "import", "ledger"]:
            result = json.loads(Path(given["import"]).read_text(encoding="utf-8"))
            ledger = Ledger.open(given["ledger"], contract=CONTRACT)
            console.print(f"recorded: {import_result(result, ledger, device=given['device'])}")
        case ["export", "ledger", "out"]:
            exported = export_attempt(Ledger.read(given["ledger"]), given["export"])
            Path(given["out"]).write_text(json.dumps(exported), encoding="utf-8")
            console.print(f"written: {given['out']}")
        case _:
            raise ConfigError((__doc__ or "").partition("\n\n")[0])


def _settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """What names the cell: settings of the benchmark and pairs of --metadata."""
    pairs = {
        name: value
        for name, value in result.items()
        if isinstance(value, str | int | float)
        and name not in (*_SETTINGS, *_NO_SETTINGS)
        and not any(part in name for part in _MEASURES)
    }
    return {name: result.get(name) for name in _SETTINGS} | pairs


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
    facts = json.loads(row["engine_facts"])
    name: str | None = facts.get("config", {}).get("model", {}).get("name")
    return name


def _known(value: Any, factor: float | None = None) -> Any:
    """A plain value, or None where it is unknown."""
    if value is None or pd.isna(value):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if factor is None else plain * factor


def _rate(count: int, span_s: float) -> float | None:
    return count / span_s if span_s > 0.0 else None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ConfigError, LedgerError, OSError) as error:
        make_console(stderr=True).print(f"{error}", markup=False)
        sys.exit(2)
