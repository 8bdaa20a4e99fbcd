"""How does a session hold no more than its plan? Planned addresses; an arena of chosen sizes."""
