"""How do gradients go through If, Loop and Scan, and through sizes that only a run knows?"""
