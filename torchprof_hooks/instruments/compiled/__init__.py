"""What torch.compile has made: compiling interrupts calls, and compiled code is divided
among the modules whose kernels it runs."""
