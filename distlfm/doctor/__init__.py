"""`distlfm doctor`: what works on this machine. Each question is a probe, run in a process of its own."""
