"""Read the committed records of a machine as a pandas DataFrame."""

from pathlib import Path

from suite import load_records

folder = Path(__file__).parents[1] / "reports"
records = load_records(folder).query("outcome == 'ok' and experiment == 'pipeoptim_emulated'")
print(records.groupby("label")[["batch_time_median"]].first())
