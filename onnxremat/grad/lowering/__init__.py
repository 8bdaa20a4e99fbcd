"""Which operators have no rule of their own, or a slow one, and what is written in their place?"""
