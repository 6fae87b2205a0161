"""What all tests share: one thread, so that timings and sums do not depend on the machine; helpers stand beside it."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Names of tests are the same in every process: workers compare them, and one that holds an address differs."""
    unsteady = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unsteady:
        raise pytest.UsageError(f"give these tests names with ids=...: {unsteady[:3]}")
