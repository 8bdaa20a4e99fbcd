"""How does a model keep a budget on each of several devices, in turn or as a pipeline?"""
