"""Decides the published values that need no run: each is computed here from the suite's own formulas.

A package of its own beside bench: memory, workload and schedule may not import each other, an answer often needs two of
them, and its code should be read apart from what measures. An answer is a function of a Question, which carries neither
the published value nor the published expression, so that none can be copied.

    question.py   what an answer may know, and the table of answers
    states.py     model states: bytes per parameter, what fits a GPU, what pruning and offload save
    costs.py      flops, messages, bubbles, checkpoints, and their slopes
    tables.py     the settings of the papers' tables, each from the others
    formulas.py   the executor: all answers of one paper in one record
"""

from suite.analytic.formulas import Formulas
from suite.analytic.question import Answer, Papers, Question, ids

__all__ = ["Answer", "Formulas", "Papers", "Question", "ids"]
