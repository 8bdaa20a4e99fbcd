"""Files that are made to break their reader, and random models for random budgets: what is drawn,
how it is run, and what was found. ``make fuzz`` goes on as long as it is told to."""
