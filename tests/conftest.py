"""What several test files share."""

import pytest
import torch

import tinytrain.precision
from tinytrain.data import RowBatches, TokenRows


@pytest.fixture
def rows():
    """63 rows of 16 random tokens."""
    return TokenRows(torch.randint(0, 256, (1009,), generator=torch.Generator().manual_seed(0)), 16, vocab_size=256)


@pytest.fixture
def data(rows):
    """The same as batches of 8 rows, in micro-batches of 3."""
    return RowBatches(rows=rows, batch_size=8, micro_batch_size=3)


@pytest.fixture
def any_format_is_fast(monkeypatch):
    """No warning about slow formats: whether there is one depends on the machine."""
    monkeypatch.setattr(tinytrain.precision, "cpu_supports", lambda dtype: True)
