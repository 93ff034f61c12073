"""What tests of connectors share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.listening import Listening


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Listening]:
    listening = Listening(tmp_path)
    yield listening
    listening.source.close()
