"""What every test shares: how asserts are reported and how Hypothesis searches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Modules of shared tests, such as the log's contract, explain their failed asserts too.
for folder in Path(__file__).parent.iterdir():
    if folder.is_dir() and folder.name.isidentifier() and folder.name != "__pycache__":
        pytest.register_assert_rewrite(f"tests.{folder.name}")

# Time limits are pytest-timeout's: how long one example takes says nothing on a busy machine.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
