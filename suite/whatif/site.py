"""Files of the what-if page: a static folder that any host serves.

It holds the page, Pyodide, the suite's own modules as a zip, and the choices of conf/ with the evidence of a reports
folder. The page requests nothing from another host.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.resources import PACKAGE, ROOT
from suite.regression.committed import changed_settings
from suite.report.files import write
from suite.report.whatif_links import FOLDER, PAGE
from suite.whatif.export import catalogue
from suite.whatif.export_evidence import evidence

PYODIDE = "pyodide@314.0.7"  # as the Makefile installs it
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PACKAGES = ("core", "schedule", "weights", "memory", "workload", "simulate", "whatif")  # of suite, without numpy
LEFT_OUT = (  # modules of these packages that a browser does not load
    *("simulate/validation", "simulate/executor", "simulate/static_order", "simulate/full_graph"),
    *("simulate/schedule_comparison", "simulate/network/exchange", "whatif/export", "whatif/site"),
)
BASELINES = ("__init__.py", "gpipe.py", "pipedream.py", "spectrain.py")
WEB = PACKAGE / "whatif" / "web"


def pyodide() -> Path:
    """Folder of the npm package pyodide. Raises MissingDependency without it."""
    folder = Path(sys.prefix) / "node_modules" / "pyodide"
    if not all((folder / name).is_file() for name in PYODIDE_FILES):
        raise MissingDependency(
            "Pyodide, which runs the what-if page,",
            f"`make install` brings it, or `npm install --prefix {sys.prefix} {PYODIDE}`",
        )
    return folder


def modules() -> bytes:
    """The suite's modules that run in a browser, and what they read, as a zip."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        files = [PACKAGE / "__init__.py", *(ROOT / "baselines" / name for name in BASELINES)]
        for name in PACKAGES:
            files += [path for kind in ("*.py", "*.json") for path in sorted((PACKAGE / name).rglob(kind))]
        for path in files:
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(tuple(f"suite/{each}" for each in LEFT_OUT)):
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def write_site(reports: Path) -> Path:
    """Write the page into `reports`/whatif, with the evidence of the records in `reports`. Returns its file.

    Raises MissingDependency without Pyodide, OSError where the folder cannot be written.
    """
    source, folder, choices = pyodide(), reports / FOLDER, catalogue(reports)
    for name in PYODIDE_FILES:
        target = folder / "pyodide" / name
        if not target.is_file() or target.stat().st_size != (source / name).stat().st_size:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
    style = (PACKAGE / "report" / "templates" / "style.css").read_bytes()  # the look of the report
    for path in sorted(WEB.iterdir()):
        write(folder, path.name, (style if path.suffix == ".css" else b"") + path.read_bytes())
    write(folder, "suite.zip", modules())
    contents = {"choices": choices, "evidence": evidence(reports, choices, changed_settings)}
    for name, content in contents.items():
        write(folder, f"{name}.json", json.dumps(content, separators=(",", ":")))
    return folder / PAGE


class _Handler(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")  # a <meta> cannot say it
        super().end_headers()

    def log_message(self, *_: object) -> None:
        return


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Server of a folder for this machine alone; port 0 is any free one. Raises InvalidRequest for a taken port."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise InvalidRequest("port", port, f"a free port ({error})", f"port={port % 50_000 + 1024}") from error
