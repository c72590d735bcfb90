"""Rules of a user's own: the worked example of docs/policies.md, typed as it stands there."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import Command

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import CONF, follow, read_option
from hsexp.engine.settings import EngineSettings, ServingSettings
from hsexp.ledger import Ledger
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.policies.eviction import EvictionConfig
from hsexp.memory.policies.waiting import WaitingConfig

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"`my/([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, flags=re.DOTALL))


@pytest.fixture
def my(tmp_path: Path) -> Iterator[Path]:
    """The files of the page, beside which the command works."""
    for name, text in EXAMPLES.items():
        path = tmp_path / "my" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    yield tmp_path / "my"
    for name in EXAMPLES:
        sys.modules.pop(Path(name).stem, None)


def test_the_page_has_three_rules_and_their_options() -> None:
    assert sorted(EXAMPLES) == [
        "attention_first.py",
        "eviction/attention_first.yaml",
        "placement/system_prompt.yaml",
        "shortest.py",
        "system_prompt.py",
        "waiting/shortest.yaml",
    ]


def test_a_campaign_runs_under_orders_of_a_user_s_own(command: Command, my: Path) -> None:
    """In processes of its own, which find the modules as this one does."""
    (typed,) = re.findall(r"^    python -m hsexp (--config-dir .*)$", PAGE, flags=re.MULTILINE)
    small = ("budget=b63", "admission.headroom=0", "organization=s2", "workload.num_requests=40")
    code, printed = command(*typed.split(), *small, "engine=sim", "workers=2", "stage=run")
    assert code == 0, printed
    path = list(sys.path)
    (row,) = Ledger.read("mine").frame().to_dict("records")
    assert (row["eviction"], row["waiting"]) == ("attention_first", "shortest")
    assert row["placement"] == "system_prompt"
    code, printed = command(*typed.split(), *small, "engine=sim", "stage=run", "waiting.among=1")
    assert code == 2 and "waiting.shortest.among: ledger has 8, this run has 1" in printed
    assert sys.path == path and str(my) not in path


def test_an_own_order_travels_to_an_engine_and_is_the_same_there(my: Path) -> None:
    follow([CONF, my])
    model = ModelConfig.parse(read_option("model", "falcon_h1_mini") | {"weights": None})
    written = {"organization": "s2", "waiting": "shortest", "eviction": "attention_first"}
    written["placement"] = "system_prompt"
    settings = ServingSettings.of(written | {"budget_bytes": 100_000_000}).resolve(model, cap=4)
    sent = settings.additional_config()
    assert sent["hsexp"]["waiting"] == {
        "kind": "shortest.ShortestFirst",
        "name": "shortest",
        "among": 8,
    }
    assert EngineSettings.of(sent) == settings
    assert settings.labels["waiting_among"] == 8
    assert type(settings.memory().cache.attention_pool._queue).__name__ == "TwoLines"
    assert type(settings.memory().placement).__name__ == "AtBoundary"


@pytest.mark.parametrize(
    ("option", "refusal"),
    [
        ({"kind": "nowhere.Order"}, "kind 'nowhere.Order' cannot be imported: No module named"),
        ({"kind": "shortest.Nobody"}, "kind 'shortest.Nobody' must name a subclass of Waiting"),
        ({"kind": "attention_first.AttentionFirst"}, "must name a subclass of WaitingSettings"),
        ({"kind": "shortest.ShortestFirst"}, r"waiting\.among is required"),
        ({"kind": "shortest.ShortestFirst", "among": 0}, r"waiting\.among must be greater than 0"),
        ({"kind": "shortest_first"}, "does not match any of the expected tags"),
    ],
)
def test_an_own_order_that_does_not_fit_is_refused_by_name(
    option: dict[str, object], refusal: str, my: Path
) -> None:
    follow([CONF, my])
    with pytest.raises(ConfigError, match=refusal):
        parse_union(WaitingConfig, {"name": "mine"} | option, path="waiting")


def test_a_module_of_the_folder_does_not_hide_one_of_python_s(my: Path) -> None:
    follow([CONF, my])
    (my / "decimal.py").write_text("raise RuntimeError('the wrong one')\n", encoding="utf-8")
    sys.modules.pop("decimal", None)
    with pytest.raises(ConfigError, match=r"'decimal\.Decimal' must name a subclass of Eviction"):
        parse_union(EvictionConfig, {"name": "mine", "kind": "decimal.Decimal"}, path="eviction")
