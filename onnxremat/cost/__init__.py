"""How long does each op take, and how many scratch bytes? Measured, or a roofline."""
