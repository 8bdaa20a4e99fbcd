"""How do the gradients of several processes become one update?"""
