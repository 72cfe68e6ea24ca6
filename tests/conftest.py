"""Tests have no part in the user's cache; those of the cache itself turn it on, in a folder of their own."""

from __future__ import annotations

import os

os.environ["RELAX_EG_CACHE"] = "0"
