"""What makes a step faster on the processor that it is made on?"""
