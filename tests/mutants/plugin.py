"""pytest plugin: clear the switch before every test, so that each test records the mutants that it reaches itself."""

import mutant_switch
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    mutant_switch.seen.clear()
