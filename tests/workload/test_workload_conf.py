"""The workload and arrival groups of `conf/` compose and mean what the classes say."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import MissingMandatoryValue, OmegaConf
from pydantic import TypeAdapter

from hsexp.config.base import ConfigError
from hsexp.workload import generate
from hsexp.workload.arrivals import ArrivalsConfig, BurstArrivals, PoissonArrivals
from hsexp.workload.synthetic import SyntheticWorkload
from hsexp.workload.traces.config import TraceWorkload

CONF = Path(__file__).parents[2] / "conf"
ARRIVALS: TypeAdapter[ArrivalsConfig] = TypeAdapter(ArrivalsConfig)


def group(choice: str, *overrides: str) -> dict[str, Any]:
    name = choice.split("=")[0]
    with initialize_config_dir(version_base=None, config_dir=str(CONF)):
        composed = compose(config_name=None, overrides=[f"+{choice}", *overrides])
    data = OmegaConf.to_container(composed[name], resolve=True, throw_on_missing=True)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("extension", 3365, 261.5), ("original", 3332, 243.0)]
)
def test_each_paper_workload_has_its_own_mean_lengths(
    name: str, prompt: float, output: float
) -> None:
    spec = SyntheticWorkload.parse(group(f"workload={name}", "workload.sharing=1.0"))
    assert (spec.name, spec.prompt_mean_tokens, spec.output_mean_tokens) == (name, prompt, output)


def test_the_paper_workloads_differ_in_nothing_else() -> None:
    extension, original = group("workload=extension"), group("workload=original")
    assert {key for key in extension if extension[key] != original[key]} == {
        "name",
        "prompt_mean_tokens",
        "output_mean_tokens",
    }


@pytest.mark.parametrize("name", ["extension", "original", "confirmation"])
def test_a_drawn_workload_differs_from_its_rescaled_one_in_the_law_of_its_outputs_alone(
    name: str,
) -> None:
    drawn, rescaled = group(f"workload={name}_drawn"), group(f"workload={name}")
    differing = {key for key in rescaled if drawn[key] != rescaled[key]}
    assert differing == {"kind", "name"}
    assert drawn.keys() - rescaled.keys() == {"output_short_fraction", "output_short_max_tokens"}


@pytest.mark.parametrize("name", ["poisson", "burst"])
def test_drawn_arrivals_have_the_numbers_of_rescaled_ones(name: str) -> None:
    assert group(f"arrivals={name}_drawn") == group(f"arrivals={name}") | {"kind": f"{name}_drawn"}


@pytest.mark.parametrize("name", ["extension", "original"])
def test_no_request_of_a_paper_workload_exceeds_the_models_limit(name: str) -> None:
    spec = SyntheticWorkload.parse(group(f"workload={name}", "workload.sharing=1.0"))
    arrivals = PoissonArrivals(kind="poisson", rate_per_s=3.0)
    for seed in range(32):
        workload = generate(spec, arrivals, seed)
        assert max(r.prompt_tokens + r.output_tokens for r in workload.requests) <= 8192


def test_a_workload_without_its_sharing_fraction_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload\.sharing .* got None"):
        SyntheticWorkload.parse(group("workload=extension"), path="workload")


def test_a_trace_needs_its_path() -> None:
    with pytest.raises(MissingMandatoryValue, match=r"workload\.path"):
        group("workload=trace")


def test_a_trace_reads_the_whole_file_and_replays_its_times() -> None:
    spec = TraceWorkload.parse(group("workload=trace", "workload.path=a.csv"))
    assert (spec.path, spec.format, spec.max_requests, spec.keep_arrivals) == (
        "a.csv",
        "auto",
        None,
        True,
    )


def test_arrivals_take_the_rate_of_the_campaign() -> None:
    steady = ARRIVALS.validate_python(group("arrivals=poisson", "arrivals.rate_per_s=3"))
    bursty = ARRIVALS.validate_python(group("arrivals=burst", "arrivals.rate_per_s=1.7"))
    assert steady == PoissonArrivals(kind="poisson", rate_per_s=3.0)
    assert bursty == BurstArrivals(kind="burst", rate_per_s=1.7, on_s=5.0, off_s=15.0)


@pytest.mark.parametrize(
    ("kind", "parser"), [("poisson", PoissonArrivals), ("burst", BurstArrivals)]
)
def test_arrivals_without_a_rate_are_refused(
    kind: str, parser: type[PoissonArrivals] | type[BurstArrivals]
) -> None:
    with pytest.raises(ConfigError, match=r"arrivals\.rate_per_s .* got None"):
        parser.parse(group(f"arrivals={kind}"), path="arrivals")
