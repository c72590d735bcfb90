"""Calibration: coefficients by hand, terms that the steps cannot tell, and the way back."""

import math
import re
from pathlib import Path

import commands
import numpy as np
import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir
from recorded import record, row

from analysis.__main__ import main
from analysis.calibration.command import calibrate
from analysis.calibration.device_file import how_to_use
from analysis.calibration.fit import PAGED, TERMS, fit
from analysis.calibration.published import published_work
from analysis.calibration.report import run_errors
from analysis.calibration.steps import read_steps
from analysis.command import run
from analysis.errors import AnalysisError
from hsexp.config.catalog import CONF, read_option
from hsexp.config.device import DeviceConfig
from hsexp.config.launch import parse_launch
from hsexp.plan.planner import make_plan
from runners.sim import execute


def steps(rows, *, base=0.010, decode=0.001, prefill=0.0001):
    """A step table of (num_steps, decode tokens, prefill tokens[, seconds more than the model])."""
    filled = [(*values, 0.0)[:4] for values in rows]
    frame = pd.DataFrame(filled, columns=["num_steps", "decode_tokens", "prefill_tokens", "more_s"])
    frame["step_s"] = (
        base
        + decode * frame["decode_tokens"]
        + prefill * frame["prefill_tokens"]
        + frame.pop("more_s")
    )
    return frame


VARIED = steps([(10, 4, 0), (3, 8, 0), (1, 2, 512), (2, 4, 1024)])


def ledger(path, *tables, device="toy"):
    """A run a table."""
    rows = [row("s1", seed, num_finished=1) for seed in range(len(tables))]
    return record(path, "q1", rows, steps=dict(enumerate(tables)), device=device)


def fitted(table):
    work = pd.DataFrame(
        {
            "base_s": 1.0,
            "decode_token_s": table["decode_tokens"].astype(float),
            "prefill_token_s": table["prefill_tokens"].astype(float),
        }
    )
    return fit(table["step_s"], work, table["num_steps"])


# -- the fit -------------------------------------------------------------------------------------


def test_steps_without_noise_give_their_coefficients_back():
    found = fitted(VARIED)
    assert found.coefficients.to_dict() == pytest.approx(
        {"base_s": 0.010, "decode_token_s": 0.001, "prefill_token_s": 0.0001}
    )
    assert found.r_squared == pytest.approx(1.0)


def test_a_stretch_weighs_as_many_steps_as_it_has():
    # Steps alike in work: three of 20 ms and one of 40 ms have a mean of 25 ms.
    alike = [(3, 0, 0, 0.010), (1, 0, 0, 0.030), (1, 5, 0, 0.05), (1, 0, 100, 0.05)]
    found = fitted(steps(alike))
    assert found.coefficients["base_s"] == pytest.approx(0.025)


def test_standard_errors_are_those_of_least_squares():
    noisy = steps([(1, 1, 0, 0.002), (1, 9, 0), (1, 3, 400, 0.001), (1, 7, 900), (1, 2, 100)])
    design = np.column_stack([np.ones(5), noisy["decode_tokens"], noisy["prefill_tokens"]])
    coefficients, squares, *_ = np.linalg.lstsq(design, noisy["step_s"])
    covariance = np.linalg.inv(design.T @ design) * squares[0] / (5 - 3)
    found = fitted(noisy)
    assert found.coefficients.to_numpy() == pytest.approx(coefficients)
    assert found.standard_errors.to_numpy() == pytest.approx(np.sqrt(np.diag(covariance)))


def test_a_coefficient_that_would_be_negative_is_held_at_0_and_said_so():
    found = fitted(steps([(1, 2, 0), (1, 8, 0), (1, 2, 500), (1, 9, 900)], prefill=-0.000001))
    assert found.coefficients["prefill_token_s"] == 0.0
    assert math.isnan(found.standard_errors["prefill_token_s"])
    assert found.warnings[0].startswith("prefill_token_s is held at 0")


def test_terms_that_nearly_go_together_are_warned_about():
    found = fitted(steps([(1, 100, 1000), (1, 101, 1010), (1, 102, 1021), (1, 103, 1030)]))
    assert "hard to tell apart" in found.warnings[-1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 1, 0), (1, 2, 0), (1, 3, 0)], "prefill_token_s is not identified: no row has any"),
        ([(1, 4, 0), (1, 4, 9), (1, 4, 5)], "decode_token_s is not identified: each step has"),
        (
            [(1, 1, 10), (1, 2, 20), (1, 3, 30)],
            "decode_token_s and prefill_token_s are not identified",
        ),
        ([(1, 1, 0), (1, 2, 9)], "3 terms need as many rows of steps, got 2"),
    ],
)
def test_a_term_that_the_steps_do_not_identify_is_refused_by_name(rows, message):
    with pytest.raises(AnalysisError, match=message):
        fitted(steps(rows))


# -- ledgers -------------------------------------------------------------------------------------


def test_steps_of_several_ledgers_are_fitted_together(tmp_path):
    paths = [ledger(tmp_path / "a", VARIED), ledger(tmp_path / "b", VARIED, VARIED)]
    read = read_steps(paths)
    # 16 steps a table; the first run of both ledgers is of the same cell.
    assert (read.num_steps, read.num_runs) == (48, 3)
    assert [source.split(" ")[0] for source in read.sources] == [str(path) for path in paths]


def test_the_error_of_a_run_is_that_of_its_total_event_time(tmp_path):
    slower = VARIED.assign(step_s=1.1 * VARIED["step_s"])
    read = read_steps([ledger(tmp_path / "a", VARIED, slower)])
    errors = run_errors(fit(read.table["step_s"], read.work, read.table["num_steps"]), read)
    # Fitted to both, each is 5 % of the first run's time off.
    assert sorted(errors["error_pct"]) == pytest.approx([100 * (1.05 / 1.1 - 1), 5.0])


def test_a_calibration_on_simulated_steps_gives_the_device_back_to_the_nanosecond(tmp_path):
    overrides = ["campaign=q6", "budget=b63", "seeds=[1]"]
    overrides += ["workload.num_requests=20", "admission.headroom=0"]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        plan = make_plan(parse_launch(compose("config", overrides)), engine="sim")
    rows = [row(cell.axes["organization"], 1, num_finished=1) for cell in plan.cells]
    tables = [execute(cell, record_steps=True).steps for cell in plan.cells]
    steps = dict(enumerate(tables))
    path = record(tmp_path / "sim", "q6", rows, steps=steps, contract=plan.contract)
    out = tmp_path / "device" / "my_gpu.yaml"
    calibrate([f"ledger={path}", "device=my_gpu", f"out={out}"])
    written = DeviceConfig.parse(yaml.safe_load(out.read_text(encoding="utf-8")))
    paper = DeviceConfig.parse(read_option("device", "a100_40gb")).step_time
    assert written.name == "my_gpu"
    assert f"{path} (journal SHA-256 " in written.source
    assert {each["organization"] for each in rows} == {"s2", "d0"}
    for term in (*TERMS, PAGED):
        assert getattr(written.step_time, term) == getattr(paper, term)


def test_runs_of_one_kernel_path_have_no_term_for_the_other(tmp_path):
    organization = read_option("organization", "s2")
    options = {"options": {"organization": {"s2": organization, "s1": organization}}}
    contract = {"engine": "sim", "model": read_option("model", "falcon_h1_7b"), **options}
    rows = [row("s2", 1, num_finished=1), row("s1", 1, num_finished=1)]
    path = record(tmp_path / "runs", "q1", rows, steps={0: VARIED, 1: VARIED}, contract=contract)
    assert list(read_steps([path]).work) == list(TERMS)


def test_runs_whose_organization_is_not_described_have_no_such_term_either(tmp_path):
    assert list(read_steps([ledger(tmp_path / "runs", VARIED)]).work) == list(TERMS)


def test_the_device_file_is_an_option_of_the_launcher(tmp_path):
    path = ledger(tmp_path / "runs", VARIED)
    out = tmp_path / "conf" / "device" / "my_gpu.yaml"
    calibrate([f"ledger={path}", "device=my_gpu", f"out={out}"])
    searched = f"hydra.searchpath=[file://{tmp_path / 'conf'}]"
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        launch = parse_launch(compose("config", ["campaign=q6", "device=my_gpu", searched]))
    assert launch.device.step_time.decode_token_s == 0.001


# -- published rows ------------------------------------------------------------------------------


def test_the_paper_gives_twenty_rows_of_work_and_time():
    time_s, work = published_work()
    assert len(time_s) == 20
    assert work["idle_s"].sum() == 6
    # Table E-6 prints this one; E-1's b63/S2 made 72,908 tokens at 470.308 tokens/s.
    assert time_s["E-6 M/S2"] == 110.356
    assert time_s["E-1 b63/S2"] == pytest.approx(72908 / 470.308)


def test_the_paged_rows_are_those_of_s1_and_s2():
    _, work = published_work()
    paged = work.index[work[PAGED] > 0.0]
    assert {name[-2:] for name in paged} == {"S1", "S2"}
    assert {name[-2:] for name in work.index.difference(paged)} == {"S0", "D0"}
    assert (work[PAGED] == work["decode_token_s"])[paged].all()


def test_the_published_rows_give_the_papers_device_to_its_digits():
    time_s, work = published_work()
    found = fit(time_s, work, 1 / time_s**2)
    paper = DeviceConfig.parse(read_option("device", "a100_40gb")).step_time
    for term in (*TERMS, PAGED):
        assert found.coefficients[term] == pytest.approx(getattr(paper, term), rel=0.001)
    assert (found.fitted / time_s - 1).abs().max() < 0.009


def test_the_other_tables_predict_e_6_to_half_a_percent_only_with_the_paged_term():
    time_s, work = published_work()
    left_out = work.index.str.startswith("E-6 ")
    errors = {}
    for terms in (list(work), [term for term in work if term != PAGED]):
        others = work.loc[~left_out, terms]
        found = fit(time_s[~left_out], others, 1 / time_s[~left_out] ** 2)
        predicted = work.loc[left_out, terms] @ found.coefficients
        errors[PAGED in terms] = (predicted / time_s[left_out] - 1).abs()
    assert errors[True].max() < 0.005
    assert errors[False].mean() > 0.01


# -- the command ---------------------------------------------------------------------------------


def test_a_device_is_written_to_the_users_folder_and_what_is_printed_finds_it(
    tmp_path, capsys, monkeypatch
):
    path = ledger(tmp_path / "runs", VARIED)
    monkeypatch.chdir(tmp_path)
    before = {each: each.stat().st_mtime_ns for each in CONF.rglob("*")}
    assert run(main, ["calibrate", f"ledger={path}", "device=my_gpu"]) == 0
    assert (tmp_path / "conf-local" / "device" / "my_gpu.yaml").is_file()
    assert {each: each.stat().st_mtime_ns for each in CONF.rglob("*")} == before
    (typed,) = re.findall(r"^to use it: python -m hsexp (.*)$", capsys.readouterr().out, re.M)
    assert typed == "--config-dir conf-local device=my_gpu engine=sim"
    done = commands.run(*typed.split(), "campaign=q6", "stage=plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "device my_gpu" in done.stdout


def test_a_device_is_written_to_the_config_dir_that_is_given(tmp_path, capsys):
    path, own = ledger(tmp_path / "runs", VARIED), tmp_path / "my own"
    own.mkdir()
    arguments = ["calibrate", f"ledger={path}", "device=my_gpu", f"config_dir={own}"]
    assert run(main, arguments) == 0
    assert (own / "device" / "my_gpu.yaml").is_file()
    assert f"--config-dir '{own}' device=my_gpu" in capsys.readouterr().out


def test_a_device_that_hydra_would_not_take_is_refused(tmp_path, monkeypatch):
    path = ledger(tmp_path / "runs", VARIED)
    monkeypatch.chdir(tmp_path)
    for more in ([], ["overwrite=true"]):
        with pytest.raises(AnalysisError, match=r"device cpu exists in .*conf/device, and Hydra"):
            calibrate([f"ledger={path}", "device=cpu", *more])
    assert not (tmp_path / "conf-local").exists()


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("x/device/gpu.yaml", "python -m hsexp --config-dir x device=gpu engine=sim"),
        (CONF / "device" / "gpu.yaml", "python -m hsexp device=gpu engine=sim"),
        ("gpu.yaml", "move it to DIR/device/gpu.yaml, then --config-dir DIR device=gpu"),
    ],
)
def test_where_a_device_file_lies_decides_what_to_type(path, advice):
    assert how_to_use(Path(path)) == advice


def test_an_existing_device_is_only_replaced_on_request(tmp_path):
    path = ledger(tmp_path / "runs", VARIED)
    out = tmp_path / "my_gpu.yaml"
    out.write_text("mine", encoding="utf-8")
    arguments = [f"ledger={path}", "device=my_gpu", f"out={out}"]
    with pytest.raises(AnalysisError, match=r"my_gpu\.yaml exists"):
        calibrate(arguments)
    assert out.read_text(encoding="utf-8") == "mine"
    calibrate([*arguments, "overwrite=true"])
    assert yaml.safe_load(out.read_text(encoding="utf-8"))["name"] == "my_gpu"


def test_a_ledger_without_step_tables_is_refused_with_the_way_to_get_them(tmp_path):
    path = record(tmp_path / "runs", "q1", [row("s1", 0, num_finished=1)])
    with pytest.raises(AnalysisError, match="no run kept its step table; run with record_steps"):
        calibrate([f"ledger={path}"])


def test_steps_of_two_devices_are_never_fitted_together(tmp_path):
    paths = [ledger(tmp_path / name, VARIED, device=name) for name in ("a", "b")]
    with pytest.raises(AnalysisError, match="the ledgers differ in device"):
        calibrate([f"ledger={path}" for path in paths])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "calibrate needs ledger="),
        (["ledger=nowhere"], "nowhere"),
        (["source=dreams"], "source must be ledger or paper, got dreams"),
        (["source=paper", "ledger=here"], "source=paper takes no ledger"),
        (["source=paper", "overwrite=maybe", "device=x"], "overwrite must be true or false"),
        (["source=paper", "out=x.yaml"], "out and overwrite need device="),
        (["source=paper", "device=a b"], "device.name"),
        (["campaign=q6"], "argument campaign=q6 is unknown"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(AnalysisError, match=message):
        calibrate(arguments)


def test_the_report_is_printed_and_written_beside_the_ledger(tmp_path, capsys):
    path = ledger(tmp_path / "runs", VARIED)
    assert run(main, ["calibrate", f"ledger={path}"]) == 0
    printed = capsys.readouterr().out
    assert "fitted to 16 steps of 1 runs" in printed
    assert "A term for context length is not identifiable" in printed
    assert {each.name for each in (path / "analysis").iterdir()} >= {
        "calibration.csv",
        "calibration-residuals.md",
        "calibration-runs.tex",
    }


# -- context -------------------------------------------------------------------------------------


def traced(path, *, context_s, keep_traces=True):
    """Runs of Q6 in a simulator whose steps take that much longer for each token of context."""
    overrides = ["campaign=q6", "budget=b63", "seeds=[1]", "trace=true"]
    overrides += ["workload.num_requests=20", "admission.headroom=0"]
    if context_s:
        overrides.append(f"+device.step_time.context_token_s={context_s}")
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        plan = make_plan(parse_launch(compose("config", overrides)), engine="sim")
    rows = [row(cell.axes["organization"], 1, num_finished=1) for cell in plan.cells]
    runs = [execute(cell, record_steps=True) for cell in plan.cells]
    return record(
        path,
        "q6",
        rows,
        steps=dict(enumerate(run.steps for run in runs)),
        traces=dict(enumerate(run.trace for run in runs)) if keep_traces else {},
        contract=plan.contract,
    )


def test_a_traced_calibration_gives_the_context_term_back(tmp_path):
    path = traced(tmp_path / "sim", context_s=0.00000005)
    out = tmp_path / "device" / "my_gpu.yaml"
    calibrate([f"ledger={path}", "device=my_gpu", f"out={out}", "context=true"])
    written = DeviceConfig.parse(yaml.safe_load(out.read_text(encoding="utf-8"))).step_time
    paper = DeviceConfig.parse(read_option("device", "a100_40gb")).step_time
    assert written.context_token_s == pytest.approx(5e-8, rel=1e-3)
    for term in (*TERMS, PAGED):
        assert getattr(written, term) == pytest.approx(getattr(paper, term), rel=1e-4)


def test_a_context_that_costs_nothing_has_no_term_and_the_report_says_so(tmp_path):
    path = traced(tmp_path / "sim", context_s=0.0)
    out = tmp_path / "device" / "my_gpu.yaml"
    tables, *_ = calibrate([f"ledger={path}", "device=my_gpu", f"out={out}", "context=true"])
    assert any(note.startswith("There is no term for context length") for note in tables[0].notes)
    written = DeviceConfig.parse(yaml.safe_load(out.read_text(encoding="utf-8"))).step_time
    assert written.context_token_s is None


def test_a_context_term_is_refused_without_traces(tmp_path):
    path = traced(tmp_path / "sim", context_s=0.0, keep_traces=False)
    with pytest.raises(AnalysisError, match="a term for context length needs traces"):
        calibrate([f"ledger={path}", "context=true"])
