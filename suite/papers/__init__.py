"""Published claims of the papers, and the code that answers them: one package per paper, and common/.

Code that only claims need is in this package; code that ordinary runs use as well is in the other packages
(tests/architecture/test_papers_alone.py). Files of a paper's folder:

README.md          sections of the paper, where each is implemented, and where its claims are answered
claims.yaml        published values: what is asserted, where, and which function or experiment gives our value
plans.yaml         settings of the published runs, and ranges of what the paper leaves open
mutations.yaml     breaks of the code that verdicts rest on, and the claims whose verdicts they turn
sensitivity.yaml   simulated verdicts over the ranges of plans.yaml and conf/stack; made by a command
review.yaml        what each check decides, read from the code alone
closed_forms.py    the paper's closed forms, as functions of numbers
formulas.py        answers from formulas, layouts and shapes
counts.py          answers counted from schedules, ledgers and partitions
probes*.py         answers from small runs of the real engine
figures.py         answers and panels of cluster runs, simulated
panels.py          the function that draws each figure or table
printed*.py        answers from printed numbers alone
*_executor.py      an executor that one figure needs

A paper's other modules are parts of these that grew too large (scaling.py, grids.py, convnets.py), or what they share
(cluster_runs.py, systems.py, model_states.py). common/ holds what several papers share:

settings.yaml      published settings: systems, models, machines, data sets, training
decisions.yaml     where papers contradict themselves or each other, and what was decided
claims.py, plans.py, passages.py      readers of the rows, of the plans and of the papers' texts
answer.py, trace.py, printed.py       calls of answer functions, what they read, and answers from printed numbers
figure_executor.py, formula_executor.py, panel.py     records of figures and of formulas
cluster_runs.py, model_shapes.py, model_states.py     simulated cluster runs, shapes and model states
closed_forms.py, equations.py, finite_difference.py, probes.py     forms, lemmas, slopes and counting tools
null_model.py, calibrate.py, sensitivity.py, mutations.py, verdicts_now.py     checks of verdicts
fill.py, reproduce_commands.py        blind mode's second half, and commands for claims that need data or a GPU
"""
