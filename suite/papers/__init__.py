"""Published claims of the four papers and of public sources on schedules, and the functions that answer them.

There is one package per paper and one for pipeline schedules. Code that names no paper is in suite/claims. A test
(tests/architecture/test_papers_alone.py) keeps code that only claims need in these packages, and code that ordinary
runs also use in the others. The folder of a paper contains:

README.md          sections of the paper, with the implementation and the answers of each
claims.yaml        published values: the assertion, its place, and the function or experiment that gives our value
plans.yaml         settings of the published runs, and ranges for settings that the paper does not print
commands.yaml      commands that measure claims on published data or a GPU
mutations.yaml     code mutations, and the claims whose verdicts each of them must change
sensitivity.yaml   simulated verdicts over the ranges of plans.yaml and conf/efficiency (generated)
closed_forms.py    closed forms of the paper as functions of numbers
formulas.py        answers from formulas, layouts and shapes
counts.py          answers counted on schedules, version tables and partitions
measured*.py       answers from small runs of the engine
figures.py         answers and panels from simulated cluster runs; a panel names the claims that print its points
orders.py, quantities.py, flushes.py, overlap.py       checked runs of schedules, their quantities, and answers
*_executor.py      executor for a single figure

The other modules of a paper split one of these files (scaling.py, grids.py, convnets.py) or are shared by several
(cluster_runs.py, systems.py, model_states.py). Shared by the papers:

settings.yaml      published settings: systems, models, machines, data sets, training
decisions.yaml     contradictions within and between the papers, with the reading adopted for each
closed_forms.py, equations.py, finite_difference.py, model_states.py   closed forms, lemmas, derivatives, states
measured.py        counters of the parts of an engine
"""
