"""How is it drawn as a picture?"""
