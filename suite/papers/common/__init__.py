"""Claims, plans, answers and executors that the papers share."""
