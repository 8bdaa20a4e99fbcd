"""How does a model become a file that keeps a budget?

Prepare, plan, rewrite, measure, and again while a budget is missed; then verify and bench.
"""
