"""What would other budgets, planners or batch sizes give? Curves and comparisons."""
