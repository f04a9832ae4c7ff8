"""Switch of the planted mutants, imported by the planted copy alone as `mutant_switch`.

MUTANT=N switches the fault N on. With MUTANTS_REACHED=FILE every process appends `number, test` to the file the first
time that a test reaches a mutant.
"""

import os

active = int(os.environ.get("MUTANT", "-1"))
log = os.environ.get("MUTANTS_REACHED")
seen: set[int] = set()  # cleared before every test (tests/mutants/plugin.py)


def reached(number: int) -> bool:
    if log is not None and number not in seen:
        seen.add(number)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        with open(log, "a") as stream:
            stream.write(f"{number}\t{test}\n")
    return number == active
