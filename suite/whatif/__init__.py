"""What-if page: schedules and clusters simulated in a browser by the same Python files.

The page's modules load no numpy, pydantic or YAML, so they run under Pyodide as they are. Two modules run only when the
page is made: `export` (choices of conf/, evidence of a reports folder) and `site` (the files that a host serves).
"""
