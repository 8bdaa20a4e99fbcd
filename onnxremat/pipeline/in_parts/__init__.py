"""How does a model keep a budget with its batch, its regions or its step in parts?"""
