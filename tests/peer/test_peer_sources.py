"""vLLM's sources come through pip, as the pinned file or not at all, and nothing of them runs."""

import hashlib
import io
import tarfile
from pathlib import Path

import peer_sources
import pytest
from peer_sources import ARCHIVE, NoSources, archive, unpack_tests

SETUP = "from pathlib import Path; Path({ran!r}).touch()"
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "setuptools.build_meta"\n'


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows, and an empty cache of the user."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def write_sources(folder: Path, *, ran: Path) -> Path:
    files = {
        "pyproject.toml": PYPROJECT,
        "setup.py": SETUP.format(ran=str(ran)),
        "vllm/__init__.py": "",
        "tests/__init__.py": "",
        "tests/v1/core/test_x.py": "x = 1",
        "tests/models/test_y.py": "",
    }
    path = folder / ARCHIVE
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{ARCHIVE.removesuffix('.tar.gz')}/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_sources_are_cached_and_none_of_their_code_runs(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    written = write_sources(index, ran=ran)
    digest = hashlib.sha256(written.read_bytes()).hexdigest()
    monkeypatch.setattr(peer_sources, "SHA256", digest)
    path = archive()
    assert path.read_bytes() == written.read_bytes()
    assert not ran.exists()
    written.unlink()
    assert archive() == path  # not asked for again
    path.write_bytes(b"damaged")
    with pytest.raises(NoSources):
        archive()


def test_other_sources_than_the_pinned_ones_are_refused(index: Path, tmp_path: Path) -> None:
    write_sources(index, ran=tmp_path / "ran")
    with pytest.raises(NoSources, match=r"vllm 0\.27\.1 as source"):
        archive()
    assert not list((tmp_path / "cache").rglob("*.tar.gz"))


def test_sources_that_no_index_has_are_refused_in_one_line(index: Path) -> None:
    with pytest.raises(NoSources, match="No matching distribution") as refused:
        archive()
    assert "\n" not in str(refused.value)


def test_only_the_tests_of_the_core_are_unpacked(tmp_path: Path) -> None:
    path = write_sources(tmp_path, ran=tmp_path / "ran")
    unpack_tests(path, tmp_path / "to")
    found = {str(p.relative_to(tmp_path / "to")) for p in (tmp_path / "to").rglob("*.py")}
    assert found == {"tests/__init__.py", "tests/v1/core/test_x.py"}
