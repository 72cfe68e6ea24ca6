"""The folder of the disk cache, and versions that keys of its entries contain."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from relax_eg.errors import OptionError
from relax_eg.limits import FEW_KEPT
from relax_eg.plain_data import is_count
from relax_eg.store import Store

LIMIT = 256 << 20  # limit: bytes of the folder, unless RELAX_EG_CACHE_BYTES is set


@lru_cache(FEW_KEPT)
def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def store() -> Store:
    """The folder of the cache. OptionError for invalid settings."""
    text = os.environ.get("RELAX_EG_CACHE_BYTES", "") or str(LIMIT)
    if not is_count(text):
        raise OptionError(f"RELAX_EG_CACHE_BYTES={text}: a number of bytes is accepted")
    return Store(_folder(), int(text))


def _folder() -> Path:
    """`RELAX_EG_CACHE_DIR`, else the platform's folder for a user's caches."""
    given = os.environ.get("RELAX_EG_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    return Path(platformdirs.user_cache_dir("relax_eg", appauthor=False))
