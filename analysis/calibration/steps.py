"""The steps of recorded runs, which a calibration on ledgers is fitted to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.calibration.fit import CONTEXT, TERMS, with_paged
from analysis.errors import AnalysisError
from analysis.ledgers import read_ledger
from analysis.runs import ORIGIN, Origin
from hsexp.config.base import parse_union
from hsexp.ledger import Ledger, NoTableError
from hsexp.memory import MemoryConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig
from hsexp.trace import TraceError
from hsexp.trace.contexts import decode_contexts

DIGEST_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of one engine and device, as work and times."""

    table: pd.DataFrame
    """All step tables in one; `run` is the cell, prefixed by its ledger if there are several.
    `paged` says whether it ran under paged kernels; unknown if the ledger does not describe its
    organization. `context_tokens` is there where it was asked for."""
    origin: Origin
    sources: tuple[str, ...]
    """Each ledger with the digest of its journal, which does not change when tables are joined."""
    model: str | None
    """Name of the model that all ledgers served; None if they differ or do not say."""

    @property
    def work(self) -> pd.DataFrame:
        """One column per term: 1, decode tokens and prefill tokens of each step; decode tokens
        once more for paged kernels if the runs differ in them; tokens of context if known."""
        columns = (1.0, self.table["decode_tokens"], self.table["prefill_tokens"])
        work = pd.DataFrame(
            dict(zip(TERMS, columns, strict=True)), index=self.table.index, dtype="float64"
        )
        work = with_paged(work, self.table["paged"])
        if "context_tokens" in self.table:
            work = work.assign(**{CONTEXT: self.table["context_tokens"].astype("float64")})
        return work

    @property
    def num_runs(self) -> int:
        return int(self.table["run"].nunique())

    @property
    def num_steps(self) -> int:
        return int(self.table["num_steps"].sum())


def read_steps(paths: Sequence[Path], *, context: bool = False) -> Steps:
    """The steps of all accepted runs that kept their step table.

    Args:
        context: also read from each run's trace what its requests had in memory.

    Raises:
        AnalysisError: a ledger cannot be read, none has step tables, they differ in origin, or a
            run has no trace that gives its contexts.
    """
    tables, frames, sources = [], [], []
    models = set()
    for path in paths:
        ledger, frame = read_ledger(path)
        frames.append(frame[list(ORIGIN)])
        models.add(ledger.contract.get("model", {}).get("name"))
        sources.append(f"{path} (journal SHA-256 {ledger.digest[:DIGEST_DIGITS]})")
        for cell_id, organization in zip(frame["cell_id"], frame["organization"], strict=True):
            try:
                table = ledger.step_table(cell_id)
            except NoTableError:
                continue  # the run kept none
            if context:
                table = table.assign(context_tokens=_contexts(ledger, cell_id, path))
            tables.append(
                table.assign(
                    run=cell_id if len(paths) == 1 else f"{path}: {cell_id}",
                    paged=_is_paged(ledger.contract, organization),
                )
            )
    if not tables:
        raise AnalysisError(
            f"{', '.join(map(str, paths))}: no run kept its step table; run with record_steps=true"
        )
    origins = pd.concat(frames).drop_duplicates()
    if len(origins) > 1:
        several = [name for name in ORIGIN if len(origins[name].unique()) > 1]
        raise AnalysisError(
            f"a calibration covers one device; the ledgers differ in {', '.join(several)}"
        )
    return Steps(
        table=pd.concat(tables, ignore_index=True),
        origin=Origin.of(origins),
        sources=tuple(sources),
        model=models.pop() if len(models) == 1 else None,
    )


def _contexts(ledger: Ledger, cell_id: str, path: Path) -> NDArray[np.float64]:
    try:
        return decode_contexts(ledger.trace(cell_id))
    except (NoTableError, TraceError) as error:
        raise AnalysisError(
            f"{path}: a term for context length needs traces (trace=true): run {cell_id}: {error}"
        ) from None


def _is_paged(contract: Mapping[str, Any], organization: str) -> bool | None:
    """Whether an organization of a ledger runs under paged kernels; None if that is not known."""
    described = contract.get("options", {}).get("organization", {}).get(organization)
    if described is None or "model" not in contract:
        return None
    return MemoryConfig.without_policies(
        model=ModelConfig.parse(contract["model"]),
        organization=parse_union(OrganizationConfig, described, path="organization"),
    ).paged
