"""The page of a campaign says what the ledger says, needs nothing else, works in a browser."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import own_ledgers
import pytest
from browser import FOUND, NAMES, Browser
from own_ledgers import Run, speeds
from recorded import record, row

from analysis import config as configs
from analysis.command import run
from analysis.ledgers import Ledgers
from figures import FIGURES, style
from figures.report.__main__ import main
from figures.report.grid import Grid
from figures.report.index import index
from figures.report.marks import marks, spelled
from figures.report.page import Campaign
from hsexp.config.catalog import options
from hsexp.ledger import Ledger

MEASURED = Path(__file__).parents[2] / "ledgers" / "cpu_falcon_h1_mini"


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.ids: list[str] = []
        self.links: list[str] = []
        self.resources: list[str] = []
        self.titles: list[str] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        elif tag != "use":
            self.resources += [str(given[name]) for name in ("src", "href") if given.get(name)]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "title":
            self.titles.append("")
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("style", "script"):
            return
        self.words.append(data)
        if "title" in self._open:
            self.titles[-1] += data
        if self.rows and {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data


def page_of(*arguments: str, out: Path) -> Page:
    main([*arguments, f"out={out}"])
    return Page(out.read_text(encoding="utf-8"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """S2 and D0 on three seeds, and a cell that failed."""
    return own_ledgers.write(
        tmp_path / "own",
        *speeds([400.0, 410.0, 420.0], organization="s2"),
        *speeds([500.0, 505.0, 520.0], organization="d0"),
        Run(axes={"organization": "s1"}, metrics={}, error="NoProgress: <b>stuck</b> & lost"),
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of the committed runs of Q6 on real vLLM."""
    out = tmp_path_factory.mktemp("report") / "q6.html"
    return page_of("campaign=q6", f"ledger={MEASURED / 'q6' / 'vllm'}", out=out)


# -- what it says ----------------------------------------------------------------------------------


def test_the_page_of_an_own_ledger_stands_beside_its_journal(own: Path) -> None:
    main([f"ledger={own}"])
    page = Page((own / "report.html").read_text(encoding="utf-8"))
    assert "Settings of campaign mine by tok/s" in page.text
    assert "d0 is best" in page.text


def test_simulated_runs_are_never_called_measured(own: Path, tmp_path: Path) -> None:
    page = page_of(f"ledger={own}", out=tmp_path / "page.html")
    assert "nothing on this page was measured" in page.text
    assert page.text.count("measured") == 1


def test_measured_runs_are_called_measured_and_not_simulated(measured: Page) -> None:
    assert "measured engine vllm" in measured.text
    assert "Times are simulated" not in measured.text


def test_a_failed_attempt_is_a_row_with_its_reason(own: Path, tmp_path: Path) -> None:
    page = page_of(f"ledger={own}", out=tmp_path / "page.html")
    (failed,) = [cells for cells in page.rows if "NoProgress: <b>stuck</b> & lost" in cells]
    assert "s1" in failed and failed[-1] == "no"
    assert "6 of 7" in page.text
    assert "<b>stuck" not in page.source


def test_an_excluded_attempt_is_named_with_its_reason(own: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(own)
    cell, attempt = next(iter(ledger.accepted().items()))
    ledger.exclude(cell, attempt, reason="ran beside another job")
    page = page_of(f"ledger={own}", out=tmp_path / "page.html")
    (excluded,) = [cells for cells in page.rows if "ran beside another job" in cells]
    assert excluded[0] == attempt and "excluded" in excluded
    assert "5 of 7" in page.text


def test_a_ledger_without_an_accepted_run_has_a_page_of_its_failures(tmp_path: Path) -> None:
    ledger = own_ledgers.write(tmp_path / "own", Run(axes={}, metrics={}, error="E: why"))
    page = page_of(f"ledger={ledger}", out=tmp_path / "page.html")
    assert "0 of 1" in page.text and "E: why" in page.text


def test_the_page_shows_the_tables_and_figures_that_conf_names(measured: Page) -> None:
    listed = configs.listing("q6")
    shown = [name.removeprefix("table-") for name in measured.ids if name.startswith("table-")]
    shown = [name for name in shown if not name.endswith("-head")]
    said = [name for name in listed.tables if f"{name}:" in measured.text and name not in shown]
    assert shown and [*shown, *said] == [*listed.tables][: len(shown) + len(said)]
    assert [f"figure-{name}" for name in listed.figures] == [
        name for name in measured.ids if name.startswith("figure-")
    ]


def test_the_page_begins_with_the_question_of_the_campaign(measured: Page) -> None:
    question = Campaign.named("q6").question
    assert question is not None and question in measured.text


@pytest.mark.parametrize("name", options("campaign"))
def test_every_campaign_asks_a_question(name: str) -> None:
    question = Campaign.named(name).question
    assert question is not None and question.endswith("?")


def test_the_decisions_of_a_family_stand_on_the_page_of_its_campaign(tmp_path: Path) -> None:
    rows = [
        row(organization, seed, throughput_tok_per_s=speed + seed % 10)
        for organization, speed in (("s0", 100.0), ("s1", 150.0), ("s2", 160.0))
        for seed in range(42000, 42012)
    ]
    ledger = record(tmp_path / "q1" / "sim", "q1", rows)
    page = page_of("campaign=q1", f"ledger={ledger}", out=tmp_path / "page.html")
    tests = [cells for cells in page.rows if cells[:1] == ["extension-22"]]
    assert {cells[1] for cells in tests} == {
        f"{pair}-{budget}" for pair in ("S1-S0", "S2-S1") for budget in ("b63", "b83", "b108")
    }
    (known,) = [cells for cells in tests if cells[1] == "S1-S0-b63"]
    assert "+" in known[3] and known[-1] in ("True", "False")


def test_the_same_ledger_gives_the_same_bytes(own: Path, tmp_path: Path) -> None:
    pages = [page_of(f"ledger={own}", out=tmp_path / "page.html").source for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_campaign_that_needs_no_run_has_a_page(tmp_path: Path) -> None:
    page = page_of("campaign=branching", f"ledgers={tmp_path}", out=tmp_path / "page.html")
    assert "no attempts and no ledger" in page.text
    assert "figure-block-waste" in page.ids


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("campaign=q6", "ledgers=nowhere"), "there is no ledger"),
        (("campaign=nothing", "ledgers=nowhere"), "campaign nothing has no analysis"),
        (("ledger=nowhere",), "campaign is required"),
        (("campaign=q6", "color=red"), "argument color=red is unknown"),
        (("campaign=q6", "out=a", "out=b"), "out is given twice"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused_in_words(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(main, arguments) == 2
    assert said in capsys.readouterr().err


# -- one document ----------------------------------------------------------------------------------


def check_links(page: Page) -> None:
    """Every internal address exists once, and nothing is asked from elsewhere."""
    assert len(page.ids) == len(set(page.ids))
    wanted = [link.removeprefix("#") for link in page.links if link.startswith("#")]
    wanted += re.findall(r'(?:href="#|url\(#)([^")]+)', page.source)
    assert set(wanted) <= set(page.ids)
    assert [link for link in page.links if not link.startswith("#") and "://" in link] == []
    assert [each for each in page.resources if not each.startswith(("#", "data:,"))] == []
    assert not re.findall(r"@import|url\((?!#)|https?://(?!www\.w3\.org/)", page.source)


def test_the_page_of_measured_runs_needs_nothing_else(measured: Page) -> None:
    check_links(measured)


def test_the_page_of_an_own_ledger_needs_nothing_else(own: Path, tmp_path: Path) -> None:
    check_links(page_of(f"ledger={own}", out=tmp_path / "page.html"))


# -- values of figures -----------------------------------------------------------------------------


def test_every_bar_and_point_of_a_figure_says_its_value(own: Path) -> None:
    style.use()
    figure = FIGURES["settings"].from_ledgers(
        Ledgers(own.parent, paths={"mine": own}, asked="mine")
    )
    figure.canvas.draw()
    said = [line for mark in marks(figure) for line in mark.lines]
    means = {"S2": 410.0, "D0": (500.0 + 505.0 + 520.0) / 3}
    for organization, mean in means.items():
        assert [line for line in said if organization in line and spelled(mean) in line], said
    width, height = figure.get_size_inches() * 72.0
    assert all(0 <= mark.x <= width and 0 <= mark.y <= height for mark in marks(figure))
    style.plt.close(figure)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (312.44, "312.4"), (0.19, "0.19"), (-8.052, "−8.052"), (0.0, "0")],
)
def test_a_value_is_spelled_as_precisely_as_it_can_be_used(value: float, text: str) -> None:
    assert spelled(value) == text


def test_a_column_of_numbers_is_right_aligned_and_one_of_names_is_not() -> None:
    grid = Grid(
        headings=("name", "value", "interval"),
        rows=(("b63", "-1.5 %", "[-2, 1]"), ("—", "—", "—")),
        aligned=(False, False, True),
    )
    assert [is_number for _, is_number in grid.columns] == [False, True, True]
    assert next(grid.cells)[1] == ("−1.5 %", True)


# -- the paper -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index over a ledger of Q1 that has some of the paper's seeds."""
    root = tmp_path_factory.mktemp("paper")
    rows = [
        row(organization, seed, throughput_tok_per_s=speed + seed % 10)
        for organization, speed in (("s0", 100.0), ("s1", 150.0), ("s2", 160.0))
        for seed in range(42000, 42004)
    ]
    record(root / "q1" / "sim", "q1", rows)
    (root / "q1" / "sim" / "report.html").write_text("the page of Q1")
    return index("paper", [f"ledgers={root}"])


def test_the_index_has_one_line_a_campaign_of_the_paper(paper: Path) -> None:
    page = Page(paper.read_text(encoding="utf-8"))
    titles = {Campaign.named(name).title for name in ("q1", "q6", "q9", "granite_b160")}
    lines = {
        title: [cells for cells in page.rows if cells[0].startswith(title)] for title in titles
    }
    assert all(len(found) == 1 for found in lines.values())
    (q1,) = lines[Campaign.named("q1").title]
    assert q1[1].startswith("S1/S0") and q1[4] == "0 of 6"
    assert "Decisions: S1-S0-b63, S2-S1-b63." in q1[6] and "−4.9 pp" in q1[6]
    (q6,) = lines[Campaign.named("q6").title]
    assert q6[2:4] == ["—", "—"] and "No number" in q6[6]
    assert "q1/sim/report.html" in page.links


def test_the_index_needs_nothing_but_the_pages_it_links_to(paper: Path) -> None:
    page = Page(paper.read_text(encoding="utf-8"))
    check_links(page)
    others = [link for link in page.links if not link.startswith("#")]
    assert others and all((paper.parent / link).is_file() for link in others)


# -- in a browser ----------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(FOUND is None, reason=f"needs one of {', '.join(NAMES)}")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(measured: Page, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "report.html"
    path.write_text(measured.source, encoding="utf-8")
    return path


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("which", ["written", "paper"])
def test_a_page_fits_its_window_without_an_error_and_without_the_network(
    which: str, width: int, scheme: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    browser.open(path, width=width, scheme=scheme)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    page, ink = (
        browser.value(f"getComputedStyle(document.body).{name}")
        for name in ("backgroundColor", "color")
    )
    brightness = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (page, ink)]
    assert (brightness[0] > brightness[1]) == (scheme == "light")


@needs_browser
def test_the_first_tab_reaches_the_link_to_the_content(browser: Browser, written: Path) -> None:
    browser.open(written)
    browser.press("Tab")
    assert browser.value("document.activeElement.className") == "skip"
    browser.press("Enter")
    assert browser.value("document.activeElement.id") == "main"


@needs_browser
def test_arrow_keys_step_through_the_values_of_a_figure(browser: Browser, written: Path) -> None:
    browser.open(written)
    browser.value("document.querySelector('.chart').focus()")
    count = browser.value(
        "document.querySelectorAll('.chart')[0].querySelectorAll('.marks > *').length"
    )
    assert count > 4
    said = []
    for _ in range(3):
        browser.press("ArrowRight")
        said.append(browser.value("document.querySelector('.reading').textContent"))
    assert len(set(said)) == 3 and all("output tokens / s" in text for text in said)
    assert browser.value("document.getElementById('tip').textContent") == said[-1]
    browser.press("Escape")
    assert browser.value("document.getElementById('tip').hidden") is True


@needs_browser
def test_pointing_at_a_mark_shows_its_value(browser: Browser, written: Path) -> None:
    browser.open(written)
    x, y = browser.value(
        "(() => { const mark = document.querySelector('.marks > circle');"
        "mark.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const box = mark.getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    browser.settle()
    browser.point_at(x, y)
    assert browser.value("document.getElementById('tip').hidden") is False
    assert "output tokens / s" in browser.value("document.getElementById('tip').textContent")


@needs_browser
def test_the_page_prints_without_what_only_a_screen_can_use(
    browser: Browser, written: Path, tmp_path: Path
) -> None:
    browser.open(written, media="print", scheme="dark")
    assert browser.value("getComputedStyle(document.querySelector('.contents')).display") == "none"
    assert browser.value("getComputedStyle(document.body).color") == "rgb(27, 33, 39)"
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
