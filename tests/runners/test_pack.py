"""An archive holds what a campaign recorded, and nothing in it can change unnoticed."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from small_launches import SMALL, carried_out

from hsexp.ledger import Ledger
from hsexp.plan.cells import Cell
from hsexp.workload import Request, Segment, Workload
from hsexp.workload.frozen import frozen, thawed
from runners import pack, verify
from runners.archive import MANIFEST, ArchiveError, opened, read_manifest

CAMPAIGN = ("campaign=q6", *SMALL, "budget=b63", "engine=sim")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ledgers/q6/sim and its archive q6.tar."""
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        carried_out(*CAMPAIGN)
        assert pack.run(["campaign=q6"]) == 0
    return folder


@pytest.fixture
def folder(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the archive, unpacked in `unpacked`."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open(packed / "q6.tar") as tar:
        tar.extractall("unpacked", filter="data")
    return tmp_path / "unpacked"


def test_an_archive_has_the_ledger_what_follows_from_it_its_inputs_and_its_configuration(
    packed: Path,
) -> None:
    with opened(packed / "q6.tar") as archive:
        manifest = read_manifest(archive, packed / "q6.tar")
        ledger = Ledger.read(archive / "ledgers/q6/sim")
        original = Ledger.read(packed / "ledgers/q6/sim")
        assert ledger.digest == original.digest == manifest["ledgers"][0]["digest"]
        digests = set(ledger.frame()["workload_digest"])
        key = next(iter(ledger.accepted()))
        assert ledger.request_table(key).equals(original.request_table(key))
    assert set(manifest["workloads"]) == digests
    assert manifest["notes"] == []
    kinds = {name.partition("/")[0] for name in manifest["files"]}
    assert kinds == {"ledgers", "tables", "figures", "workloads", "config"}
    assert not any("lock" in name or "runs.parquet" in name for name in manifest["files"])


def test_equal_ledgers_give_equal_bytes_whatever_the_archive_is_called(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(packed)
    assert pack.run(["campaign=q6", "out=again/other.tar", "ledger=ledgers/q6/sim"]) == 0
    assert (packed / "again/other.tar").read_bytes() == (packed / "q6.tar").read_bytes()
    assert str(packed).encode() not in (packed / "q6.tar").read_bytes()


def test_what_was_packed_is_verified_also_where_it_was_unpacked(
    packed: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.run([str(packed / "q6.tar")]) == 0
    assert verify.run([str(folder)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"files of tables: made again from the ledgers, bit for bit", out)) == 2
    assert list(folder.parent.iterdir()) == [folder]


def test_an_archive_that_is_there_is_replaced_only_if_told_so(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(packed)
    assert pack.run(["campaign=q6"]) == 2
    assert capsys.readouterr().err == (
        "error: q6.tar exists; overwrite=true replaces it, out= names another file\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["campaign=q1"], "ledgers/q1: there is no ledger to pack"),
        (["campaign=nope"], "campaign 'nope' does not exist"),
        (["ledger=ledgers/q6/sim"], "pack needs campaign="),
        (["campaign=q1", "ledger=absent"], "absent: there is no ledger here"),
        (["campaign=q6", "engine=vllm"], "there is no ledger of engine vllm to pack"),
    ],
)
def test_what_cannot_be_packed_is_one_line_and_leaves_no_file(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack.run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not any(tmp_path.iterdir())


def reckoned(
    folder: Path, change: Callable[[dict[str, object]], None] = lambda manifest: None
) -> None:
    """The manifest of a folder as if its files had always been these."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, said in manifest["files"].items():
        data = (folder / name).read_bytes()
        said |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def first(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


def _newer(folder: Path) -> None:
    reckoned(folder, lambda manifest: manifest.update(format=2))


def _other_table(folder: Path) -> None:
    flip(first(folder, "tables/*/*/*.csv"), 3)
    reckoned(folder)


def _other_requests(folder: Path) -> None:
    path = first(folder, "workloads/*.parquet")
    other = "0" * 64
    path.rename(path.with_name(f"{other}.parquet"))
    manifest = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(manifest.replace(path.stem, other))


def _damaged_ledger(folder: Path) -> None:
    flip(first(folder, "ledgers/q6/sim/requests-*.parquet"), 200)
    reckoned(folder)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "another byte": (lambda f: flip(first(f, "tables/*/*/*.md")), "does not have the SHA-256"),
    "a longer file": (
        lambda f: first(f, "config/*/*.yaml").open("a").write("x"),
        "does not have the size of the manifest",
    ),
    "a missing file": (lambda f: first(f, "figures/*/*/*.svg").unlink(), ".svg is missing"),
    "one file more": (lambda f: (f / "tables/x").touch(), "tables/x is not in the manifest"),
    "a link": (
        lambda f: (f / "tables/x").symlink_to("/etc/hostname"),
        "tables/x is not in the manifest",
    ),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "it has no manifest.json"),
    "no JSON": (lambda f: (f / MANIFEST).write_text("{"), "manifest.json cannot be read"),
    "a list": (lambda f: (f / MANIFEST).write_text("[]"), "manifest.json names no files"),
    "a newer format": (_newer, "the format must be 1, got 2"),
    "another table": (_other_table, "is made otherwise from the ledgers here"),
    "other requests": (_other_requests, "the requests have the digest"),
    "a damaged ledger": (_damaged_ledger, "is missing or damaged"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_a_folder_that_is_not_what_was_packed_is_refused_in_one_line(
    spoil: Callable[[Path], object],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(folder)
    assert verify.run([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def tar_with(path: Path, entry: tarfile.TarInfo, data: bytes = b"") -> Path:
    entry.size = len(data)
    with tarfile.open(path, "w") as tar:
        tar.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["../outside", "/outside", "tables/../../outside", "notes.txt"])
def test_a_tar_file_that_names_places_outside_of_it_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tar_with(tmp_path / "bad.tar", tarfile.TarInfo(name), b"x")
    assert verify.run([str(path)]) == 2
    assert capsys.readouterr().err == (f"error: {path}: {name!r} does not belong in an archive\n")
    assert list(tmp_path.iterdir()) == [path]


def test_a_tar_file_with_a_link_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("tables/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    with (
        pytest.raises(ArchiveError, match="does not belong"),
        opened(tar_with(tmp_path / "bad.tar", link)),
    ):
        pass


@pytest.mark.parametrize("kept", [0, 100, 700, 5000])
def test_an_archive_that_was_cut_short_is_refused_in_one_line(
    kept: int, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.tar"
    path.write_bytes((packed / "q6.tar").read_bytes()[:kept])
    assert verify.run([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_archive_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.run(["absent.tar"]) == 2
    assert capsys.readouterr().err == "error: absent.tar: there is no such file or folder\n"


def test_runs_that_a_campaign_reuses_are_packed_with_the_ledger_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    carried_out(*CAMPAIGN)
    source = Ledger.read("ledgers/q6/sim")
    user = Ledger.open("ledgers/q4/sim", contract=source.contract | {"campaign": "q4"})
    row = source.frame().iloc[0]
    cell = Cell(
        campaign="q4",
        block=row["block"],
        axes={"seed": 7},
        config={},
        cell_id=row["cell_id"],
        pair_id=row["pair_id"],
    )
    user.refer(cell, source)
    pack.pack([("q4", Path("ledgers/q4/sim"))], tmp_path / "archive")
    copied = Ledger.read(tmp_path / "archive/ledgers/q4/sim")
    assert (tmp_path / "archive/ledgers/q6/sim/journal.jsonl").exists()
    assert len(copied.request_table(cell.cell_id)) == 4


def test_a_frozen_workload_is_the_workload_again() -> None:
    first_request = Request(
        request_id=0,
        arrival_s=0.1,
        prompt_tokens=3,
        output_tokens=2,
        segments=(Segment(end_tokens=2, content_id=9), Segment(end_tokens=5, content_id=1 << 60)),
    )
    later = Request(
        request_id=1,
        arrival_s=1 / 3,
        prompt_tokens=4,
        output_tokens=1,
        segments=(Segment(end_tokens=5, content_id=3, generated=True),),
        cache_salt="salt",
        after=0,
        think_s=0.7,
    )
    workload = Workload(name="small", requests=(first_request, later))
    again = thawed(frozen(workload), "small")
    assert again == workload
    assert again.digest == workload.digest


def test_a_table_of_something_else_is_not_a_workload() -> None:
    table = frozen(
        Workload(
            name="w",
            requests=(Request(request_id=0, arrival_s=0.0, prompt_tokens=1, output_tokens=1),),
        )
    )
    with pytest.raises(ValueError, match="columns must be"):
        thawed(table.drop_columns("after"), "w")
