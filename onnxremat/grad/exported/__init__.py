"""What did an exporter make of a model's parameters, and how is each trained once and by itself?"""
