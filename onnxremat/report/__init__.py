"""How are results shown? Tables, plots, traces: data in, text or a file out."""
