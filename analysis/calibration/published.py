"""The rows of Tables E-1, E-3, E-4 and E-6 as work and time, for a fit of published values.

A row is a mean run: K steps, decode tokens, prefill tokens, and a time: the event time (E-6) or
else the request span, output tokens over throughput. Host overhead counts as 0. At 0.8 requests
a second (E-3) the engine also waits for arrivals; that is a term of its own, the same for six rows.
S1 and S2 ran under paged kernels (Appendix B.9), which is one more term.
"""

import pandas as pd

from analysis.calibration.fit import TERMS, with_paged
from analysis.published import published_table
from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.memory import MemoryConfig
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import OrganizationConfig

PAPER_MODEL = "falcon_h1_7b"

TIME = "time_s"
IDLE = "idle_s"
BASE, DECODE, PREFILL = TERMS


def published_work() -> tuple[pd.Series, pd.DataFrame]:
    """Seconds of each row, and its work with one column per term."""
    tables = {"E-1": _recorded("E-1"), "E-3": _recorded("E-3")}
    tables |= {"E-4": _running_example(), "E-6": _submitted()}
    rows = pd.concat([table.set_axis(name + " " + table.index) for name, table in tables.items()])
    rows[IDLE] = rows.index.str.startswith("E-3 ").astype("float64")
    organizations = rows.index.str.extract(r"(\w+)$", expand=False).str.lower()
    paged = pd.Series(organizations.map(_is_paged), index=rows.index)
    return rows[TIME], with_paged(rows[list(TERMS)], paged).assign(**{IDLE: rows[IDLE]})


def _is_paged(organization: str) -> bool:
    """Whether the paper's model runs under paged kernels."""
    return MemoryConfig.without_policies(
        model=ModelConfig.parse(read_option("model", PAPER_MODEL)),
        organization=parse_union(
            OrganizationConfig, read_option("organization", organization), path=""
        ),
    ).paged


def _recorded(name: str) -> pd.DataFrame:
    """Rows of E-1 and E-3; outputs are H - C_once."""
    table = published_table(name)
    outputs = table["h"] - table["c_once"]
    return pd.DataFrame(
        {
            TIME: outputs / table["throughput"],
            BASE: table["k"],
            DECODE: outputs,
            PREFILL: table["c_once"],
        }
    )


def _running_example() -> pd.DataFrame:
    """Rows of E-4, which prints no H; its seeds, and so their outputs, are those of G-1."""
    table, same_seeds = published_table("E-4").T, published_table("G-1").iloc[0]
    outputs = float(same_seeds["recorded_total"] - same_seeds["initial_input"])
    return pd.DataFrame(
        {
            TIME: outputs / table["mean_throughput"],
            BASE: table["k_recorded_iterations"],
            DECODE: outputs,
            PREFILL: table["c_once"],
        }
    )


def _submitted() -> pd.DataFrame:
    """Rows of E-6, which prints event times; E-9 splits its tokens into decode and prefill."""
    table, phases = published_table("E-6"), published_table("E-9")
    return pd.DataFrame(
        {
            TIME: table["event_time"],
            BASE: table["token_bearing_forwards"],
            DECODE: phases["chunk_decode_input"],
            PREFILL: phases["chunk_prefill"],
        }
    )
