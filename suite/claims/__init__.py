"""Claims of the papers: rows, answers, verdicts, mutations and sensitivities.

claim.py, load.py, plans.py                 claims and verdicts; readers for the files of the papers
blind.py                                    blind mode: no printed outcome is read
answer.py, trace.py, printed.py             calls of answer functions, record of their inputs, printed arithmetic
figure_executor.py, formula_executor.py, panel.py              records of figures and formulas
cluster_runs.py, on_cores.py                       simulated cluster runs, processes
judge.py, verdict_rules.py, claim_text.py   our values and the rules for their verdicts; claims.csv and claims.json
null_model.py, sensitivity.py, mutate.py, verdicts_now.py      null models and checks of verdicts
"""
