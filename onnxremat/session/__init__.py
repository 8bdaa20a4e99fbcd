"""How is one session opened, measured and compared? Options, bytes, order, outputs, repeats."""
