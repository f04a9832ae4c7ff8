"""Archive: complete, reproducible and redacted."""

from __future__ import annotations

import getpass
import gzip
import io
import json
import socket
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.artifact import redact
from suite.artifact.build import MANIFEST, make, pack
from suite.claims import load
from suite.cli.artifact import main
from suite.core.exit_codes import Exit
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.record import Outcome, Record
from suite.core.trace import FORWARD, Span
from tests.support import accuracy, nights

ROOT = Path(__file__).resolve().parents[3]
SECRET = "/home/alice_w/experiments"


def record(key: str, **changes: Any) -> Record:
    config = {"reports": f"{SECRET}/reports", "launch": {"python_path": ["mine", f"{SECRET}/mine"]}}
    provenance = {"command": f"suite run reports={SECRET}/reports", "seconds": 12.0, "host": socket.gethostname()}
    provenance |= {"machine": {"processor": "A processor", "cores": 2, "memory_bytes": 8e9, "system": "Linux"}}
    return nights.record((0.5, 0.6), key=key, config=config, provenance=provenance, **changes)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """The archive of a successful record, a failed one, one of another machine, and a file that is no record."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "records").mkdir()
    (folder / "traces").mkdir()
    reason = (
        f'Traceback\n  File "{SECRET}/suite/x.py", line 3\n  File "/usr/lib/python3.11/json/x.py", line 1\nat ~bob/y/z'
    )
    failed = record("b", outcome=Outcome.FAILED, reason=reason, label="failed")
    (folder / "records" / "a.json").write_text(record("a", trace="traces/a.json.gz").to_json())
    (folder / "records" / "b.json").write_text(failed.to_json())
    (folder / "records" / "rubbish.json").write_text(f"{SECRET}")
    other = folder / "measured" / "elsewhere"
    other.mkdir(parents=True)
    (other / "demo.jsonl").write_text(record("c").to_json(None))
    span = Span(0, FORWARD, 0.0, 1.0, Op.parse("0F0"))
    content = {"grid": {"data": 1, "inter": 1, "tensor": 1}, "spans": [span.row()]}
    with gzip.GzipFile(f"{SECRET}/a.json", "wb", fileobj=(folder / "traces" / "a.json.gz").open("wb")) as trace:
        trace.write(json.dumps(content).encode())
    accuracy.write(folder, {"refusal": f"{SECRET}/cells.yaml"})
    with pytest.MonkeyPatch.context() as patch:  # there is no experiment of this name
        patch.setattr("suite.artifact.build.changed_settings", lambda record: "")
        path = make(folder, doctor=[f"python             works: {SECRET}/bin/python"])
        yield path, unpack(path.read_bytes())


def unpack(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        return {name.partition("/")[2]: packed.read(name) for name in packed.namelist()}


def test_archive_is_complete(bundle: tuple[Path, dict[str, bytes]]) -> None:
    path, files = bundle
    assert path.name.startswith("ae-bundle-0.")
    expected = ["README.md", "CLAIMS.md", "LICENSE", "CITATION.cff", "MANIFEST.sha256", "source.tar.gz"]
    expected += [f"environment/{name}" for name in ("packages.txt", "machine.json", "doctor.txt")]
    expected += [f"reports/{name}" for name in ("index.html", "claims.html", "report.css", "report.js")]
    expected += [f"reports/{name}" for name in ("records.csv", "claims.csv", "claims.json")]
    expected += ["reports/records/a.json", "reports/records/b.json"]
    expected += ["reports/measured/elsewhere/demo.jsonl", "reports/traces/a.json.gz"]
    expected += ["reports/accuracy.csv", "reports/accuracy_constants.csv"]
    assert set(expected) <= files.keys()
    assert "reports/records/rubbish.json" not in files
    assert Grid(**json.loads(gzip.decompress(files["reports/traces/a.json.gz"]))["grid"]) == Grid()
    readme = files["README.md"].decode()
    assert "3 records" in readme
    assert b"torch==" in files["environment/packages.txt"]
    assert b"works: PATH/python" in files["environment/doctor.txt"]
    rows = [line for line in files["CLAIMS.md"].decode().splitlines() if "| [row](reports/claims.html#claim-" in line]
    assert len(rows) == len(json.loads(files["reports/claims.json"])) > 500
    first = rows[0].split(" | ")[0].strip("| ")
    assert f'id="claim-{first}"' in files["reports/claims.html"].decode(), "the link points to a row of the page"
    assert any("`suite run experiment=" in row for row in rows)


def test_archive_does_not_identify_the_machine(bundle: tuple[Path, dict[str, bytes]]) -> None:
    _, files = bundle
    redacted = {name: data for name, data in files.items() if name != "source.tar.gz"}
    texts = {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in redacted.items()}
    words = [SECRET, "alice_w", "~bob", str(ROOT), str(Path.home()) + "/", "/tmp/", "/usr/lib/"]
    words += [name for name in (getpass.getuser(), socket.gethostname()) if name in redact.names_here()]
    for name, data in texts.items():
        for word in words:
            assert word.encode() not in data, f"{word} in {name}"
    assert b"alice" not in redacted["reports/traces/a.json.gz"], "gzip stores a file name"
    stored = json.loads(files["reports/records/b.json"])
    assert stored["reason"].splitlines()[1:] == [
        '  File "PATH/x.py", line 3',
        '  File "LIBRARIES/json/x.py", line 1',
        "at PATH/z",
    ]
    assert stored["config"]["launch"]["python_path"] == ["mine", "PATH/mine"]


@pytest.mark.slow("two archives are made")
def test_same_records_give_the_same_bytes(bundle: tuple[Path, dict[str, bytes]]) -> None:
    path, _ = bundle
    first = path.read_bytes()
    again = make(path.parent, doctor=[f"python             works: {SECRET}/bin/python"])
    changed = again != path  # a commit in between changes the source and the name
    assert changed or again.read_bytes() == first
    assert {info.date_time for info in zipfile.ZipFile(path).infolist()} == {(1980, 1, 1, 0, 0, 0)}
    names = zipfile.ZipFile(path).namelist()
    assert names == sorted(names)


def test_archive_without_readable_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = load.claims()[:9]
    monkeypatch.setattr(load, "claims", lambda: few)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "damaged.json").write_text("no record")
    assert main([f"reports={tmp_path}", "--no-doctor"]) == Exit.OK
    (path,) = tmp_path.glob("ae-bundle-*.zip")
    assert capsys.readouterr().out.strip() == str(path)
    files = unpack(path.read_bytes())
    assert f"{len(few)} claims; {len(few)} have no record here." in files["CLAIMS.md"].decode()
    assert files["MANIFEST.sha256"].count(b"\n") == len(files) - 1


def test_manifest_is_of_every_file_and_order_does_not_matter(tmp_path: Path) -> None:
    packed = pack({"a.txt": b"one", "b/c.txt": b"two"}, "top")
    assert pack({"b/c.txt": b"two", "a.txt": b"one"}, "top") == packed
    zipfile.ZipFile(io.BytesIO(packed)).extractall(tmp_path)
    check = ["sha256sum", "--strict", "--check", MANIFEST]
    said = subprocess.run(check, cwd=tmp_path / "top", capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["a.txt: OK", "b/c.txt: OK"]
    (tmp_path / "top" / "a.txt").write_text("two")
    assert subprocess.run(check, cwd=tmp_path / "top", capture_output=True, check=False).returncode == 1
