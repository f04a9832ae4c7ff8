"""Folders of files that ship with the package.

A checkout has `conf/` next to `suite/`; an installed wheel has it inside the package (pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # holds the packages suite and baselines: a checkout, or site-packages


def conf_folder() -> Path:
    """The folder of the YAML files that Hydra composes, with config.yaml at its top."""
    checkout = ROOT / "conf"
    return checkout if (checkout / "config.yaml").is_file() else PACKAGE / "conf"
