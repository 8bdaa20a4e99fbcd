"""How is a plan explained on one page?"""
